"""MLflow's system metrics of the driver's machine, where MLFLOW_ENABLE_SYSTEM_METRICS_LOGGING asks for them."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from recur_tune.tracking.mlflow.internals import is_monitoring

if TYPE_CHECKING:  # importing MLflow takes seconds
    from mlflow.system_metrics.system_metrics_monitor import SystemMetricsMonitor

SWITCH = "MLFLOW_ENABLE_SYSTEM_METRICS_LOGGING"


class SystemMetrics:
    """MLflow's monitor of this machine, logged to the search's run if the user wants it."""

    def __init__(self, uri: str) -> None:
        self._uri = uri
        self._wanted = os.environ.get(SWITCH, "").lower() in ("true", "1")
        self._monitor: SystemMetricsMonitor | None = None

    def keep_going(self, run: str) -> None:
        """Start the monitor if it does not run: it ends when a call fails or the run is not running."""
        if not self._wanted or (self._monitor and is_monitoring(self._monitor)):
            return
        from mlflow.system_metrics.system_metrics_monitor import SystemMetricsMonitor

        self._monitor = SystemMetricsMonitor(run, resume_logging=True, tracking_uri=self._uri)
        self._monitor.start()

    def end(self) -> None:
        """Send the last values and stop."""
        if self._monitor is not None:
            self._monitor.finish()
