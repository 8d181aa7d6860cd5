"""Exporter: a search's metrics through Ray, whose nodes serve them to Prometheus; a file lists the nodes."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from itertools import chain

from recur_tune.common.errors import UserError
from recur_tune.common.files import write_text
from recur_tune.common.throttle import Every
from recur_tune.search.record.directory import SearchDirectory
from recur_tune.search.record.spec import SearchSpec
from recur_tune.search.record.state import SearchState
from recur_tune.tracking.prometheus.metrics import METRICS, PREFIX, Sample, samples_of

TARGETS = ".prometheus"  # folder in the results: a file for each running search, for Prometheus's file_sd

_SECONDS_BETWEEN_EXPORTS = 5.0  # Ray exports every ten

SampleSource = Callable[[], Iterable[Sample]]


@contextmanager
def exporting(
    directory: SearchDirectory, spec: SearchSpec, sources: Iterable[SampleSource] = ()
) -> Iterator[PrometheusExporter]:
    """An exporter for as long as the search runs."""
    exporter = PrometheusExporter(directory, spec, sources)
    try:
        yield exporter
    finally:
        exporter.close()


class PrometheusExporter:
    """Sets Ray's gauges every few seconds; `sources` add further samples, as of SLURM's queue."""

    def __init__(self, directory: SearchDirectory, spec: SearchSpec, sources: Iterable[SampleSource]) -> None:
        from ray.util.metrics import Gauge

        self.directory, self.spec, self.sources = directory, spec, tuple(sources)
        self.gauges = {name: Gauge(PREFIX + name, one.text, one.labels) for name, one in METRICS.items()}
        self.file = directory.path.parent / TARGETS / f"{directory.name}.json"
        self.targets: list[str] | None = None
        self.due = Every(_SECONDS_BETWEEN_EXPORTS)

    def export(self, state: SearchState) -> None:
        """Set all gauges, unless that was just done. Ray drops a value that is not set again, as of an ended trial."""
        if not self.due():
            return
        for sample in chain(samples_of(state, self.spec), *(source() for source in self.sources)):
            labels = (self.directory.name, *sample.by)
            self.gauges[sample.name].set(sample.value, dict(zip(METRICS[sample.name].labels, labels, strict=True)))
        self._publish_targets()

    def close(self) -> None:
        """Remove the list of nodes."""
        self.file.unlink(missing_ok=True)

    def _publish_targets(self) -> None:
        import ray

        targets = sorted(
            f"{node['NodeManagerAddress']}:{node['MetricsExportPort']}"
            for node in ray.nodes()
            if node["Alive"] and node.get("MetricsExportPort")
        )
        if targets != self.targets:
            with suppress(UserError, OSError):  # a disk that is full is no reason to end a search
                self.file.parent.mkdir(exist_ok=True)
                write_text(self.file, json.dumps([{"targets": targets}]) + "\n")
            self.targets = targets
