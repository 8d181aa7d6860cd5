"""The outputs of every search: MLflow, Prometheus, and the front as tables, pictures and a page."""

from __future__ import annotations

from contextlib import AbstractContextManager

from recur_tune.report.front_files import write_front
from recur_tune.search.record.directory import SearchDirectory
from recur_tune.search.record.spec import SearchSpec
from recur_tune.search.run.outputs import Outputs
from recur_tune.sites.slurm.folder import SlurmFolder
from recur_tune.sites.slurm.metrics import Allocations
from recur_tune.tracking.mlflow.tracker import Tracker
from recur_tune.tracking.prometheus.exporter import PrometheusExporter, exporting


def exporting_with_allocations(
    directory: SearchDirectory, spec: SearchSpec
) -> AbstractContextManager[PrometheusExporter]:
    """An exporter for Prometheus, which also shows the search's SLURM allocations where it has some."""
    slurm = SlurmFolder(directory)
    return exporting(directory, spec, [Allocations(slurm)] if slurm.exists else [])


OUTPUTS = Outputs(Tracker, exporting_with_allocations, write_front)
