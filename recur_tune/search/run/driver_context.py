"""What the driver does while the cluster works: watch the cluster and requests to stop, and log each stage."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from recur_tune.cluster.liveness import ClusterWatchdog
from recur_tune.common.throttle import Every
from recur_tune.common.units import format_count
from recur_tune.search.record.directory import SearchLog
from recur_tune.search.run.outputs import Exporter

_SECONDS_BETWEEN_LINES = 5.0  # of the log, about work in progress


class StageLog:
    """Logs what is being prepared before the first trial, so that every reader of the log knows."""

    def __init__(self, log: SearchLog) -> None:
        self.log, self.due = log, Every(_SECONDS_BETWEEN_LINES)

    def tell(self, text: str, **more: float | str) -> None:
        """Log that a stage begins, or how far it is."""
        self.log.record("stage", text=text, **more)

    def tokenising(self, interrupted: Callable[[], bool]) -> Callable[[str, int], None]:
        """A progress callback for tokenisation, which raises KeyboardInterrupt once `interrupted`; nothing is lost."""

        def progress(corpus: str, tokens: int) -> None:
            if interrupted():
                raise KeyboardInterrupt
            if self.due():
                self.tell(f"tokenising {corpus}: {format_count(tokens)} tokens so far")

        return progress


@dataclass(frozen=True)
class DriverContext:
    """What the driver watches, whatever the cluster works on."""

    log: SearchLog
    interrupted: Callable[[], bool]
    exporter: Exporter
    watchdog: ClusterWatchdog

    def look(self) -> None:
        """Check that the cluster is there, pass on a request to stop, and update the exporter."""
        self.watchdog.check()
        if self.interrupted() and not self.log.directory.stop_requested:
            self.log.directory.request_stop()
        self.exporter.export(self.log.state)
