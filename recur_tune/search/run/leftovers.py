"""What a driver that was killed had no time to remove."""

from __future__ import annotations

import shutil

from recur_tune.common.files import PARTIAL
from recur_tune.search.record.directory import MODEL, SearchLog
from recur_tune.search.record.front import front
from recur_tune.search.record.spec import SearchSpec
from recur_tune.search.record.state import ENDED
from recur_tune.training.run_folder import RESUME


def remove_leftovers(spec: SearchSpec, log: SearchLog) -> None:
    """Remove checkpoints and unwanted models of trials that have ended, and whatever was half written."""
    known = {**log.state.trials, **log.state.repeats}
    kept = front(log.state.trials.values(), spec.objectives) if spec.keep == "front" else []
    for folder in (log.directory.path / "trials").glob("[0-9]*"):
        for partial in (*folder.glob(f"{PARTIAL}*"), *folder.glob(f"{RESUME}/{PARTIAL}*")):
            shutil.rmtree(partial, ignore_errors=True)
        record = known.get(int(folder.name))
        if record is None or record.state not in ENDED:
            continue
        shutil.rmtree(folder / RESUME, ignore_errors=True)
        if record.state == "complete" and spec.keep != "all" and record not in kept:
            shutil.rmtree(folder / MODEL, ignore_errors=True)
