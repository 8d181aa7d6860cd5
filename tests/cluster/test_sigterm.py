"""SIGTERM before trials begin: the search pauses, also while Ray has a handler of its own."""

from __future__ import annotations

import os
import signal
import sys

import pytest

from recur_tune.cluster.sigterm import own_sigterm, paused_by_sigterm
from recur_tune.common.errors import Paused


def test_a_search_that_is_being_prepared_pauses() -> None:
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(Paused, match="SIGTERM came before trials began") as told, paused_by_sigterm():
        os.kill(os.getpid(), signal.SIGTERM)
    assert told.value.exit_code == 75 and signal.getsignal(signal.SIGTERM) is before


def test_it_pauses_too_while_rays_own_handler_would_exit() -> None:
    with pytest.raises(Paused), paused_by_sigterm(), own_sigterm():
        signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(number))  # as ray.init does
        os.kill(os.getpid(), signal.SIGTERM)
    with pytest.raises(SystemExit), own_sigterm():
        sys.exit(1)
