"""A worker whose memory is too small for one trial; apart from the tests, of which a worker would load all imports."""

from __future__ import annotations

import json
import os
from contextlib import nullcontext
from typing import Any
from unittest import mock

import torch

from recur_tune.search.run.trainable import run_trial


def short_of_memory(job: dict[str, Any]) -> None:
    """Trial 1 does not fit; whatever trains it raises what CUDA raises."""
    from ray import tune

    failing = job["number"] == 1
    error = torch.OutOfMemoryError("CUDA out of memory")
    patch = mock.patch("recur_tune.search.run.trainable.set_up", side_effect=error) if failing else nullcontext()
    with patch:
        run_trial(job, lambda message: tune.report({"report": json.dumps({**message, "worker": f":{os.getpid()}"})}))
