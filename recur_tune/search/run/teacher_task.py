"""Making a teacher's predictions on the cluster: one task with a trial's resources, before the first trial.

They are kept in the cache of the node that made them. Where other nodes have caches of their own, the first trial there
makes them again.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

from recur_tune.cluster.capacity import TrialResources
from recur_tune.common.files import cache_folder
from recur_tune.common.throttle import Every, Throttled
from recur_tune.common.units import format_count
from recur_tune.config.trial import TrialConfig
from recur_tune.search.record.directory import SearchDirectory
from recur_tune.search.record.spec import SearchSpec
from recur_tune.search.run.cluster_task import Message, lasting_messages
from recur_tune.search.run.driver_context import DriverContext, StageLog

_SECONDS_BETWEEN_LOOKS = 0.5
_SECONDS_BETWEEN_REPORTS = 2.0


class _Stopped(Exception):
    """A stop was requested."""


def teachers(spec: SearchSpec) -> list[TrialConfig]:
    """A trial for each teacher of the space."""
    found = {}
    for config in spec.corners:
        if config.teacher:
            of = config.base, config.corpus, config.tokenizer, config.teacher.window, config.teacher.top
            found[of] = config
    return list(found.values())


def make_predictions(config: TrialConfig, allotment: TrialResources, context: DriverContext, stages: StageLog) -> bool:
    """Make a teacher's predictions and log the progress; False where a stop was requested first."""
    directory = context.log.directory
    job = {
        "search": str(directory.path), "cpus": allotment.cpus, "cache": str(cache_folder().absolute()),
        "trial": directory.with_own_base(config).plain_values(),
    }  # fmt: skip
    stages.tell("looking for the teacher's predictions …", share=0.0)

    def died(reason: str) -> None:
        context.log.record("notice", text=f"the teacher's worker died ({reason}); it reads again from the beginning.")
        context.look()

    last: Message = {}
    begun = False
    for last in lasting_messages(
        _teach, job, f"{directory.name}-teacher", allotment, context.look, died, "loss: the worker of distill's teacher"
    ):
        if "tokens" in last and not begun:
            stages.tell(f"making {last['words']} …", share=0.0)
            begun = True
        elif "tokens" in last and stages.due():
            done, total = last["tokens"], last["of"]
            stages.tell(f"the teacher reads: {format_count(done)} of {format_count(total)} tokens", share=done / total)
        context.look()
    return not last.get("paused")


def _teach(job: Message) -> Iterator[Message]:
    """Runs in a worker of the cluster, in its training thread."""
    import torch

    from recur_tune.search.run.training_thread import messages_of
    from recur_tune.training.setup import teach

    os.environ["RECUR_TUNE_CACHE"] = job["cache"]
    stop = Throttled(lambda: SearchDirectory(Path(job["search"])).stop_requested, _SECONDS_BETWEEN_LOOKS)
    due = Every(_SECONDS_BETWEEN_REPORTS)

    def work(tell: Callable[[Message], None]) -> None:
        def teaching(words: str, tokens: int, total: int) -> None:
            if stop():
                raise _Stopped
            if due():
                tell({"words": words, "tokens": tokens, "of": total})

        torch.set_num_threads(max(1, int(job["cpus"])))
        try:
            teach(TrialConfig(**job["trial"]), teaching)
        except _Stopped:
            tell({"paused": True})

    with closing(messages_of(work)) as messages:
        yield from messages
