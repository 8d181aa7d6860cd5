"""What is made before the first trial outlives its worker; in place of the cluster stands what Ray raises."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

import pytest
from ray.exceptions import NodeDiedError, OutOfMemoryError, RayError, WorkerCrashedError

from recur_tune.cluster.capacity import TrialResources
from recur_tune.common.errors import UserError
from recur_tune.common.parsing import parse
from recur_tune.config.trial import TrialConfig
from recur_tune.search.record.directory import SearchDirectory
from recur_tune.search.run import cluster_task
from recur_tune.search.run.base_task import make_base
from recur_tune.search.run.driver_context import DriverContext, StageLog
from recur_tune.search.run.teacher_task import make_predictions
from tests.search.record import search

_ONE = TrialResources(cpus=1, gpus=0, at_once=1)
_DISTILLED = {"loss": "distill", "teacher_window": 64}
_DEATHS = [WorkerCrashedError(), NodeDiedError("its node died"), OutOfMemoryError("the node is out of memory")]


class _Context:
    """A driver's, without a cluster."""

    def __init__(self, directory: SearchDirectory) -> None:
        self.log = directory.open_log()

    def look(self) -> None:
        pass


Preparation = Callable[[TrialConfig, TrialResources, DriverContext, StageLog], bool]


@pytest.mark.parametrize(
    ("prepare", "notice", "refusal"),
    [
        (make_base, "the worker that pretrained tiny died (", "base: the worker that pretrains tiny died too often ("),
        (make_predictions, "the teacher's worker died (", "loss: the worker of distill's teacher died too often ("),
    ],
)
def test_what_dies_begins_again_and_after_the_fourth_death_is_refused(
    prepare: Preparation, notice: str, refusal: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RECUR_TUNE_CACHE", str(tmp_path / "cache"))
    directory = SearchDirectory.create(tmp_path, "mine", search())
    deaths: list[RayError] = []

    def messages(*_: Any) -> Iterator[dict[str, Any]]:
        yield {"elsewhere": True}
        if deaths:
            raise deaths.pop()

    monkeypatch.setattr(cluster_task, "_messages", messages)
    context = cast(DriverContext, _Context(directory))
    config = parse(TrialConfig, {"base": "tiny", **_DISTILLED})
    deaths += _DEATHS
    assert prepare(config, _ONE, context, StageLog(context.log))
    assert [text.startswith(notice) for text in context.log.state.notices] == [True] * 3
    deaths += [*_DEATHS, WorkerCrashedError()]
    with pytest.raises(UserError) as refused:
        prepare(config, _ONE, context, StageLog(context.log))
    assert str(refused.value).startswith(refusal)
