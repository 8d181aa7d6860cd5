"""Pretraining a base on the cluster: one task with a trial's resources and a checkpoint at every validation.

The base is kept in the cache of the node that trained it, for all later searches, and copied into the search directory,
which every node sees. The driver only receives messages.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

from recur_tune.cluster.capacity import TrialResources
from recur_tune.cluster.connection import node_name
from recur_tune.common.files import cache_folder, whole_folder
from recur_tune.common.throttle import Every, Throttled
from recur_tune.common.units import format_count
from recur_tune.config.trial import TrialConfig
from recur_tune.search.record.directory import SearchDirectory
from recur_tune.search.run.cluster_task import Message, lasting_messages
from recur_tune.search.run.driver_context import DriverContext, StageLog
from recur_tune.training.pretraining import kept_base, pretrained_base, pretraining_of

_SECONDS_BETWEEN_LOOKS = 0.5
_SECONDS_BETWEEN_REPORTS = 2.0


def make_base(config: TrialConfig, allotment: TrialResources, context: DriverContext, stages: StageLog) -> bool:
    """Pretrain a base for the search on the cluster and log its progress; False where a stop was requested first."""
    title = f"pretraining the base {config.base}, once for all searches"
    if kept := kept_base(pretraining_of(config.base, config.corpus, config.tokenizer)):
        stages.tell(f"taking the base {config.base}, which was pretrained before …")
        _copy(kept, context.log.directory.own_base(config))
        return True
    stages.tell(f"{title} …", share=0.0)

    def listen(message: Message) -> None:
        if "elsewhere" in message and stages.due():
            stages.tell(f"waiting for the base {config.base}, which another search pretrains …")
        elif "tokens" in message and stages.due():
            tokens, whole, loss = message["tokens"], message["of"], message["loss"]
            stages.tell(
                f"{title}: {format_count(tokens)} of {format_count(whole)} tokens, loss {loss:.3f}",
                share=tokens / whole, loss=loss, tokens=tokens, worker=message["worker"],
            )  # fmt: skip
        context.look()

    def died(reason: str) -> None:
        text = f"the worker that pretrained {config.base} died ({reason}); it goes on from its checkpoint."
        context.log.record("notice", text=text)
        context.look()

    return _pretrain_on_cluster(context.log.directory, config, allotment, listen, context.look, died)


def _pretrain_on_cluster(
    directory: SearchDirectory, config: TrialConfig, allotment: TrialResources, listen: Callable[[Message], None],
    wait: Callable[[], None], died: Callable[[str], None],
) -> bool:  # fmt: skip
    """Pretrain a preset and copy it into the search; False when a stop was requested, after a checkpoint."""
    job = {
        "search": str(directory.path), "own": str(directory.own_base(config)), "cpus": allotment.cpus,
        "trial": pretraining_of(config.base, config.corpus, config.tokenizer).plain_values(),
        "cache": str(cache_folder().absolute()),
    }  # fmt: skip
    whose = f"base: the worker that pretrains {config.base}"
    last: Message = {}
    for last in lasting_messages(_pretrain, job, f"{directory.name}-base", allotment, wait, died, whose):
        listen(last)
    return not last.get("paused")


def _pretrain(job: Message) -> Iterator[Message]:
    """Runs in a worker of the cluster, in its training thread."""
    import torch

    from recur_tune.search.run.training_thread import messages_of
    from recur_tune.training.loop import Report
    from recur_tune.training.run_folder import Interrupted

    os.environ["RECUR_TUNE_CACHE"] = job["cache"]
    config, worker = TrialConfig(**job["trial"]), f"{node_name()}:{os.getpid()}"
    stop = Throttled(lambda: SearchDirectory(Path(job["search"])).stop_requested, _SECONDS_BETWEEN_LOOKS)
    due = Every(_SECONDS_BETWEEN_REPORTS)

    def work(tell: Callable[[Message], None]) -> None:
        def listen(report: Report) -> None:
            if due() or report.last:
                tell({"tokens": report.tokens, "of": config.tokens, "loss": report.loss, "worker": worker})

        def wait() -> None:
            if due():
                tell({"elsewhere": True})

        torch.set_num_threads(max(1, int(job["cpus"])))
        try:
            made = pretrained_base(config, listen, stop, wait)
        except Interrupted:
            tell({"paused": True})
            return
        _copy(made, Path(job["own"]))

    with closing(messages_of(work)) as messages:
        yield from messages


def _copy(made: Path, own: Path) -> None:
    """Copy a base's files, without its checkpoint folder."""
    with whole_folder(own) as partial:
        for file in made.iterdir():
            if file.is_file():
                shutil.copy(file, partial)
