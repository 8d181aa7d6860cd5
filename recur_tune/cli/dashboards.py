"""`recur-tune dashboards`: Prometheus and Grafana on localhost, with our dashboards."""

from __future__ import annotations

from pathlib import Path

import click

from recur_tune.cli.display import note, stderr
from recur_tune.cli.options import results_option
from recur_tune.search.record.directory import results_folder


@click.group()
def dashboards() -> None:
    """Watch searches in Grafana: progress, throughput, memory, failures, the queue.

    \b
      recur-tune dashboards up        # Prometheus records every search that runs; Grafana shows it
      recur-tune dashboards down      # ends both; what was recorded stays
      recur-tune dashboards write DIR # the same files, for a Prometheus and a Grafana of your site
    """


@dashboards.command()
@click.option("--port", type=click.IntRange(1, 65535), default=9090, show_default=True, help="For Prometheus.")
@click.option("--grafana-port", type=click.IntRange(1, 65535), default=3000, show_default=True, help="For Grafana.")
@results_option
def up(port: int, grafana_port: int, results: Path | None) -> None:
    """Start Prometheus and, where it is installed, Grafana; they stay when this command ends.

    Both listen on localhost only. A port that is taken gives way to the next free one. Prometheus finds every search
    of the results folder while it runs.
    """
    from recur_tune.tracking.prometheus.servers import DashboardServers

    servers = DashboardServers(results_folder(results))
    running = servers.running()
    with stderr.status("starting …"):
        found = servers.up(port, grafana_port)
    for server, wanted in ((found["prometheus"], port), (found.get("grafana"), grafana_port)):
        if server and server.name in running:
            note(f"{server.name} runs already.")
        elif server and server.port != wanted:
            note(f"port {wanted} is taken; {server.name} has {server.port}.")
        if server:
            click.echo(f"{server.name:<11} {server.url}")
    if "grafana" not in found:
        note(f"Grafana is not installed here; the dashboards for another one are in {servers.folder / 'boards'}.")


@dashboards.command()
@results_option
def down(results: Path | None) -> None:
    """End the servers that `up` has started; what Prometheus has recorded stays."""
    from recur_tune.tracking.prometheus.servers import DashboardServers

    ended = DashboardServers(results_folder(results)).down()
    stderr.print(f"ended {' and '.join(server.name for server in ended)}." if ended else "none was running.")


@dashboards.command()
@click.argument("folder", type=click.Path(file_okay=False, path_type=Path))
@click.option("--prometheus", default="http://127.0.0.1:9090", show_default=True, help="Its address, for Grafana.")
@results_option
def write(folder: Path, prometheus: str, results: Path | None) -> None:
    """Write the configuration of Prometheus, Grafana's provisioning and the dashboards into FOLDER."""
    from recur_tune.tracking.prometheus.files import write_files

    write_files(folder, results_folder(results), prometheus)
    click.echo(folder)
