"""Work before the first trial, as one task of the cluster with a trial's resources: its messages, also where its worker
or its node dies."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from recur_tune.cluster.capacity import TrialResources
from recur_tune.common.errors import UserError

_MOST_DEATHS = 3  # of its worker or node, before the search is refused
_SECONDS_BETWEEN_LOOKS = 0.5

Message = dict[str, Any]
Work = Callable[[Message], Iterator[Message]]


def lasting_messages(
    work: Work, job: Message, name: str, allotment: TrialResources, wait: Callable[[], None],
    died: Callable[[str], None], whose: str,
) -> Iterator[Message]:  # fmt: skip
    """Run `work` as a task with a trial's resources and yield its messages; a task whose worker dies begins again.

    Args:
        wait: Called twice a second.
        died: Called with the reason of every death after which the task begins again.
        whose: The field and the worker, as a refusal names them: `base: the worker that pretrains tiny`.
    """
    from ray.exceptions import RayError, RayTaskError

    for deaths in range(_MOST_DEATHS + 1):
        try:
            yield from _messages(work, job, name, allotment, wait)
            return
        except RayTaskError as error:
            raise error.cause from None
        except RayError as error:
            reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
            if deaths == _MOST_DEATHS:
                raise UserError(f"{whose} died too often ({reason}).") from None
            died(reason)


def _messages(
    work: Work, job: Message, name: str, allotment: TrialResources, wait: Callable[[], None]
) -> Iterator[Message]:
    import ray

    task = ray.remote(num_cpus=allotment.cpus, num_gpus=allotment.gpus, max_retries=0)(work)
    messages = task.options(name=name).remote(job)
    while True:
        while not ray.wait([messages], timeout=_SECONDS_BETWEEN_LOOKS)[0]:
            wait()
        try:
            message = next(messages)
        except StopIteration:
            return
        yield ray.get(message)
