"""MLflow's private names that tracking needs, which may change without notice.

`tests/tracking/test_mlflow_internals.py` fails when one has changed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:  # importing MLflow takes seconds
    from mlflow.system_metrics.system_metrics_monitor import SystemMetricsMonitor

# Prefix of the experiment's tags in which MLflow's pages keep shared views.
VIEW_TAG = "mlflow.sharedViewState."


def is_monitoring(monitor: SystemMetricsMonitor) -> bool:
    """Whether the monitor's thread runs."""
    return monitor._process is not None and monitor._process.is_alive()
