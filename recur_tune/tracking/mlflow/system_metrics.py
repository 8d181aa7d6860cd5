"""How busy the driver's machine is, where MLflow's own switch asks for it: MLFLOW_ENABLE_SYSTEM_METRICS_LOGGING."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from recur_tune.tracking.mlflow.internals import is_monitoring

if TYPE_CHECKING:  # importing MLflow takes seconds
    from mlflow.system_metrics.system_metrics_monitor import SystemMetricsMonitor

SWITCH = "MLFLOW_ENABLE_SYSTEM_METRICS_LOGGING"


class SystemMetrics:
    """MLflow's monitor of this machine beside a search's run, if anybody wants it."""

    def __init__(self, uri: str) -> None:
        self._uri = uri
        self._wanted = os.environ.get(SWITCH, "").lower() in ("true", "1")
        self._monitor: SystemMetricsMonitor | None = None

    def keep_going(self, run: str) -> None:
        """Have it run; it ends by itself when a call fails or the run is not running."""
        if not self._wanted or (self._monitor and is_monitoring(self._monitor)):
            return
        from mlflow.system_metrics.system_metrics_monitor import SystemMetricsMonitor

        self._monitor = SystemMetricsMonitor(run, resume_logging=True, tracking_uri=self._uri)
        self._monitor.start()

    def end(self) -> None:
        """Send what it has."""
        if self._monitor is not None:
            self._monitor.finish()
