"""Pretraining a base as work for the cluster: one task with a trial's resources, saved at every validation.

The base is kept in the cache of the node that trained it, once for all searches there, and copied into the search,
which every node sees. Whoever runs the search only listens.
"""

from __future__ import annotations

import os
import shutil
import socket
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

from recur_tune.common.errors import UserError
from recur_tune.common.files import cache_folder, whole_folder
from recur_tune.common.throttle import Every, Throttled
from recur_tune.config.trial import TrialConfig
from recur_tune.search.record.directory import SearchDirectory
from recur_tune.sites.ray.capacity import TrialResources
from recur_tune.sites.ray.cluster import NODE_NAME
from recur_tune.training.pretraining import kept_base, pretrained_base, pretraining_of

_MOST_DEATHS = 3  # of its worker, or of the worker's node
_SECONDS_BETWEEN_LOOKS = 0.5
_SECONDS_BETWEEN_REPORTS = 2.0

Message = dict[str, Any]


def pretrain_on_cluster(
    directory: SearchDirectory, config: TrialConfig, allotment: TrialResources,
    listen: Callable[[Message], None], wait: Callable[[], None],
) -> bool:  # fmt: skip
    """Have a preset pretrained and copied into the search; False when a stop was asked for, and it is saved.

    Args:
        listen: Hears how far it is, and that a worker died.
        wait: Called twice a second meanwhile.
    """
    from ray.exceptions import RayError, RayTaskError

    if kept := kept_base(pretraining_of(config.base, config.corpus, config.tokenizer)):
        _copy(kept, directory.own_base(config))
        return True
    for deaths in range(_MOST_DEATHS + 1):
        try:
            last: Message = {}
            for last in _messages(directory, config, allotment, wait):
                listen(last)
            return not last.get("paused")
        except RayTaskError as error:
            raise error.cause from None
        except RayError as error:
            reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
            if deaths == _MOST_DEATHS:
                raise UserError(
                    f"base: the worker that pretrains {config.base} died again and again ({reason})."
                ) from None
            listen({"died": reason})
    raise AssertionError("unreachable")


def _messages(
    directory: SearchDirectory, config: TrialConfig, allotment: TrialResources, wait: Callable[[], None]
) -> Iterator[Message]:
    import ray

    task = ray.remote(num_cpus=allotment.cpus, num_gpus=allotment.gpus, max_retries=0)(_pretrain)
    job = {
        "search": str(directory.path), "own": str(directory.own_base(config)), "cpus": allotment.cpus,
        "trial": pretraining_of(config.base, config.corpus, config.tokenizer).plain_values(),
        "cache": str(cache_folder().absolute()),
    }  # fmt: skip
    messages = task.options(name=f"{directory.name}-base").remote(job)
    while True:
        while not ray.wait([messages], timeout=_SECONDS_BETWEEN_LOOKS)[0]:
            wait()
        try:
            message = next(messages)
        except StopIteration:
            return
        yield ray.get(message)


def _pretrain(job: dict[str, Any]) -> Iterator[Message]:
    """In a worker of the cluster, in whose own thread a trial would train."""
    import torch

    from recur_tune.search.run.training_thread import messages_of
    from recur_tune.training.loop import Report
    from recur_tune.training.run_folder import Interrupted

    os.environ["RECUR_TUNE_CACHE"] = job["cache"]
    config, worker = TrialConfig(**job["trial"]), f"{os.environ.get(NODE_NAME) or socket.gethostname()}:{os.getpid()}"
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
    """The files of a base, without what it would be gone on from."""
    with whole_folder(own) as partial:
        for file in made.iterdir():
            if file.is_file():
                shutil.copy(file, partial)
