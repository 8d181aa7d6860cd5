"""What happens before the first trial, as the log tells it: every reader of the log knows what is going on."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from recur_tune.common.throttle import Every
from recur_tune.common.units import format_count
from recur_tune.config.trial import TrialConfig
from recur_tune.search.record.directory import SearchLog
from recur_tune.search.run.base_task import pretrain_on_cluster
from recur_tune.sites.ray.cluster import Allotment
from recur_tune.sites.ray.liveness import Lifeline
from recur_tune.tracking.prometheus.exporter import Meter

_SECONDS_BETWEEN_LINES = 5.0  # about work that goes on


class StageLog:
    """Writes what is being prepared into the log."""

    def __init__(self, log: SearchLog) -> None:
        self.log, self.due = log, Every(_SECONDS_BETWEEN_LINES)

    def tell(self, text: str, **more: float | str) -> None:
        """Something begins, or has come so far."""
        self.log.record("stage", text=text, **more)

    def tokenising(self, interrupted: Callable[[], bool]) -> Callable[[str, int], None]:
        """For whoever tokenises: how far that is. It can be ended at any time, and nothing is lost."""

        def progress(corpus: str, tokens: int) -> None:
            if interrupted():
                raise KeyboardInterrupt
            if self.due():
                self.tell(f"tokenising {corpus}: {format_count(tokens)} tokens so far")

        return progress


@dataclass(frozen=True)
class DriverContext:
    """What a driver keeps an eye on, whatever the cluster works on."""

    log: SearchLog
    interrupted: Callable[[], bool]
    meter: Meter
    lifeline: Lifeline

    def look(self) -> None:
        """Is the cluster there, did somebody ask for a stop, what is there to tell Prometheus?"""
        self.lifeline.check()
        if self.interrupted() and not self.log.directory.stop_requested:
            self.log.directory.request_stop()
        self.meter.tell(self.log.state)


def make_base(config: TrialConfig, allotment: Allotment, context: DriverContext, stages: StageLog) -> bool:
    """Have the cluster pretrain a base for the search; False where somebody asked for a stop first."""
    title = f"pretraining the base {config.base}, once for all searches"
    stages.tell(f"{title} …", share=0.0)

    def listen(message: dict[str, Any]) -> None:
        if "died" in message:
            text = f"the worker that pretrained {config.base} died ({message['died']}); it goes on from its checkpoint."
            context.log.record("notice", text=text)
        elif "elsewhere" in message and stages.due():
            stages.tell(f"waiting for the base {config.base}, which another search pretrains …")
        elif "tokens" in message and stages.due():
            tokens, whole, loss = message["tokens"], message["of"], message["loss"]
            stages.tell(
                f"{title}: {format_count(tokens)} of {format_count(whole)} tokens, loss {loss:.3f}",
                share=tokens / whole, loss=loss, tokens=tokens, worker=message["worker"],
            )  # fmt: skip
        context.look()

    return pretrain_on_cluster(context.log.directory, config, allotment, listen, context.look)
