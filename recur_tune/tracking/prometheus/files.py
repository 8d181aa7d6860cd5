"""Configuration files of Prometheus and Grafana, for our own servers and for a site's."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import yaml

from recur_tune.common.files import write_text
from recur_tune.tracking.prometheus.dashboards import DASHBOARDS, SOURCE
from recur_tune.tracking.prometheus.exporter import TARGETS

PROMETHEUS = "prometheus.yml"
PROVISIONING = "provisioning"


def write_files(folder: Path, results: Path | str, prometheus: str, boards: Path | str | None = None) -> None:
    """Write all of them below a folder.

    Args:
        folder: Where they go.
        results: The folder of the searches, with the lists of their nodes.
        prometheus: Its address, for Grafana.
        boards: Where Grafana will find the dashboards, if not below `folder`.
    """
    _write(folder / PROMETHEUS, _scraping(results))
    _write(folder / PROVISIONING / "datasources" / "recur-tune.yml", _source(prometheus))
    _write(folder / PROVISIONING / "dashboards" / "recur-tune.yml", _provider(boards or folder / "boards"))
    for dashboard in DASHBOARDS:
        path = folder / "boards" / f"{dashboard.uid}.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        write_text(path, json.dumps(dashboard.to_json(), indent=2) + "\n")


def _write(path: Path, content: dict[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    write_text(path, yaml.safe_dump(content, sort_keys=False))


def _scraping(results: Path | str) -> dict[str, Any]:
    """Scraping of the nodes that every running search lists in a file."""
    found = {"files": [f"{results}/{TARGETS}/*.json"], "refresh_interval": "10s"}
    return {
        "global": {"scrape_interval": "10s"},
        "scrape_configs": [{"job_name": "recur-tune", "file_sd_configs": [found]}],
    }


def _source(prometheus: str) -> dict[str, Any]:
    source = {
        "name": "recur-tune", "uid": SOURCE["uid"], "type": SOURCE["type"], "url": prometheus, "access": "proxy",
        "jsonData": {"timeInterval": "10s"},
    }  # fmt: skip
    return {"apiVersion": 1, "datasources": [source]}


def _provider(boards: Path | str) -> dict[str, Any]:
    provider = {"name": "recur-tune", "folder": "recur-tune", "type": "file", "options": {"path": str(boards)}}
    return {"apiVersion": 1, "providers": [provider]}
