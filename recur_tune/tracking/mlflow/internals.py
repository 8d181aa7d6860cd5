"""What MLflow does not promise and tracking needs: each name that may change without notice stands here alone.

`tests/tracking/test_mlflow_internals.py` says which of them has changed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:  # importing MLflow takes seconds
    from mlflow.system_metrics.system_metrics_monitor import SystemMetricsMonitor

# MLflow's pages keep a view that somebody shares as a tag of the experiment, whose name begins so.
VIEW_TAG = "mlflow.sharedViewState."


def is_monitoring(monitor: SystemMetricsMonitor) -> bool:
    """Whether the monitor's thread is at work."""
    return monitor._process is not None and monitor._process.is_alive()
