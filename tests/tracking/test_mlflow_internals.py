"""Names that MLflow does not promise: a failure here says which of them a new version has changed."""

from __future__ import annotations

from pathlib import Path

import mlflow
import pytest

from recur_tune.tracking.mlflow.internals import VIEW_TAG, is_monitoring

pytestmark = pytest.mark.slow


def test_a_monitors_thread_is_its_process(results: Path) -> None:
    from mlflow.system_metrics.system_metrics_monitor import SystemMetricsMonitor

    uri = f"sqlite:///{results}/mlflow.db"
    run = mlflow.MlflowClient(uri).create_run("0").info.run_id
    monitor = SystemMetricsMonitor(run, resume_logging=True, tracking_uri=uri)
    assert not is_monitoring(monitor), "SystemMetricsMonitor._process is not None before it starts"
    monitor.start()
    try:
        assert is_monitoring(monitor), "SystemMetricsMonitor._process is no longer the thread that monitors"
    finally:
        monitor.finish()
    assert not is_monitoring(monitor), "SystemMetricsMonitor._process outlives finish()"


def test_the_pages_know_the_tag_of_a_shared_view() -> None:
    pages = Path(mlflow.__file__).parent / "server" / "js" / "build" / "static" / "js"
    assert any(VIEW_TAG.rstrip(".").encode() in file.read_bytes() for file in pages.glob("main.*.js")), (
        f"MLflow's pages no longer read shared views from tags {VIEW_TAG}*"
    )
