"""What tests share: a cache of their own, and small random models made on the spot."""

from __future__ import annotations

import gc
import importlib
import os
import sqlite3
import sys
import tempfile
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

# Before anything of ours is imported: no test may find, or leave, anything in the user's own cache.
os.environ["RECUR_TUNE_CACHE"] = tempfile.mkdtemp(prefix="recur-tune-tests-")
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["CUDA_VISIBLE_DEVICES"] = ""  # exact comparisons are a CPU's business
os.environ["TRITON_INTERPRET"] = "1"  # which also runs kernels; Triton looks for it when it is loaded
os.environ["OPENBLAS_NUM_THREADS"] = "1"  # NumPy's and SciPy's threads spin, and tests run side by side

import hypothesis
import pytest

from tests import forked
from tests.command import own_server
from tests.processor import PROCESSOR, processor_seconds

if TYPE_CHECKING:  # torch and transformers take seconds of a core, which a process that only hands out tests can spare
    from recur_tune.models import RecurrentGPT2, RecurrentGPT2Config
    from recur_tune.recurrences.pooled.spec import PooledSpec

# A busy machine is slow now and then, which is no failure. Where a change is judged, it always meets the same examples;
# everywhere else new ones are tried.
_JUDGED = bool(os.environ.get("RECUR_TUNE_REQUIRE_ALL"))
_SLOW = [hypothesis.HealthCheck.too_slow]
_FSYNC = os.fsync
_BEFORE = pytest.StashKey[float]()  # seconds of the processor, when a test began
hypothesis.settings.register_profile("tests", deadline=None, suppress_health_check=_SLOW, derandomize=_JUDGED)
hypothesis.settings.load_profile("tests")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Where every optional part is required, a skipped test is a failed one."""
    report = yield
    if report.skipped and _JUDGED:
        report.outcome, report.longrepr = "failed", f"required here, but skipped: {report.longrepr}"
    return report


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """What a test and its fixtures cost goes with its results, for `tests.legs`."""
    item.stash[_BEFORE] = processor_seconds()
    return (yield)


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(item: pytest.Item) -> None:
    """After its own fixtures."""
    item.user_properties.append((PROCESSOR, round(processor_seconds() - item.stash[_BEFORE], 2)))


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """A cluster's leg loads the files that name its mark, and none of what the others import."""
    mark = config.getoption("markexpr")
    if mark not in ("ray", "slurm") or not collection_path.match("test_*.py"):
        return None
    return f"mark.{mark}" not in collection_path.read_text() or None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Files with slow tests come first: were a long one the last, one process would work on it and the others wait.
    Those with pages come last, since a browser that has to wait for a core takes twice as much of it."""
    slow = {item.path for item in items if item.get_closest_marker("slow")}
    items.sort(key=lambda item: (item.get_closest_marker("browser") is not None, item.path not in slow))


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """What is loaded meanwhile stays for good: garbage is not looked for, and all of it is left out of every later
    collection, which then takes milliseconds instead of a fifth of a second."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()
        gc.collect()
        gc.freeze()


@pytest.fixture(autouse=True, scope="session")
def _one_thread() -> None:
    """Models this small lose more to waiting for a second thread than they win, and tests run side by side."""
    import torch

    torch.set_num_threads(1)


@pytest.fixture(autouse=True, scope="session")
def _no_waiting_for_disks() -> Iterator[None]:
    """Without fsync: no test survives a power cut, and a process that dies loses nothing that it has written. Tests of
    durability use `real_fsync`."""
    from sqlalchemy import event
    from sqlalchemy.engine import Engine

    def hurry(connection: Any, record: object) -> None:
        if isinstance(connection, sqlite3.Connection):
            connection.execute("PRAGMA synchronous = OFF")

    event.listen(Engine, "connect", hurry)
    with pytest.MonkeyPatch.context() as calls:
        calls.setattr(os, "fsync", lambda file: None)
        yield
    event.remove(Engine, "connect", hurry)


@pytest.fixture
def real_fsync(monkeypatch: pytest.MonkeyPatch) -> None:
    """The system's own fsync, for tests of what lies on a disk after a crash."""
    monkeypatch.setattr(os, "fsync", _FSYNC)


@pytest.fixture(autouse=True)
def _as_new() -> None:
    """Random numbers from their start, and the same kernels: where a processor has no bfloat16, torch turns oneDNN off
    for the rest of a process after the first such product, and later tests would compute to other bits.

    `torch.manual_seed` would also note from where it is called, for a GPU, and that takes it milliseconds."""
    import torch

    torch.default_generator.manual_seed(0)
    torch.backends.mkldnn.set_flags(True)


@pytest.fixture
def from_the_fork_server(monkeypatch: pytest.MonkeyPatch) -> None:
    """Commands and servers that a test starts in other processes, however deep below, load nothing heavy."""
    forked.start_from(own_server(), monkeypatch)


@pytest.fixture
def experiment(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Runs one of experiments/ in this process, as its command line would."""
    monkeypatch.syspath_prepend(str(Path(__file__).parents[1] / "experiments"))

    def run(name: str, *words: object) -> None:
        monkeypatch.setattr(sys, "argv", [name, *map(str, words)])
        importlib.import_module(name).main()

    return run


def small_config(recurrence: PooledSpec | None = None, **changes: object) -> RecurrentGPT2Config:
    """A GPT-2 small enough for exact comparisons."""
    settings = {
        "vocab_size": 61, "n_positions": 32, "n_embd": 24, "n_layer": 3, "n_head": 2, "initializer_range": 0.2,
        "resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0, "bos_token_id": None, "eos_token_id": None,
    }  # fmt: skip
    from recur_tune.models import RecurrentGPT2Config
    from recur_tune.recurrences.registry import settings_of

    return RecurrentGPT2Config(**settings | changes, recurrence=settings_of(recurrence))


def small_model(recurrence: PooledSpec | None = None, **changes: object) -> RecurrentGPT2:
    """A random model of that shape, in evaluation mode."""
    from recur_tune.models import RecurrentGPT2

    return RecurrentGPT2(small_config(recurrence, **changes)).eval()
