"""Names that Ray does not promise: a failure here says which of them a new version has changed."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from contextlib import nullcontext
from inspect import unwrap
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from recur_tune.cluster import internals as ray_internals


def test_a_process_is_called_by_ray_raylet_setproctitle() -> None:
    receive, send = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            ray_internals.set_process_title("ray::books-T7")
            os.write(send, Path("/proc/self/cmdline").read_bytes())
        finally:
            os._exit(0)
    os.close(send)
    with os.fdopen(receive, "rb") as said:
        title = said.read()
    os.waitpid(child, 0)
    assert title.startswith(b"ray::books-T7"), "ray._raylet.setproctitle no longer sets the title of a process"


class Subscriber:
    """A driver's, which hears once that a raylet has died."""

    def __init__(self) -> None:
        self.over = threading.Event()

    def subscribe(self) -> None: ...

    def poll(self) -> tuple[None, dict[str, Any]]:
        self.over.set()
        return None, {"job_id": None, "error_message": "Raylet is terminated."}


def test_what_ray_has_to_say_to_drivers_is_not_printed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from ray import JobID
    from ray._private import worker

    def hear() -> str:
        heard = Subscriber()
        driver = SimpleNamespace(gcs_error_subscriber=heard, current_job_id=JobID.nil())
        worker.listen_error_messages(driver, heard.over)  # type: ignore[arg-type]
        return capsys.readouterr().out

    # As it is where no search has run in this process before; what it was is put back afterwards.
    monkeypatch.setattr(worker, "print_to_stdstream", unwrap(worker.print_to_stdstream))
    assert "Raylet is terminated" in hear(), "Ray says so in another way"
    ray_internals.print_no_messages()
    assert hear() == "", "ray._private.worker.print_to_stdstream is no longer what prints it"


def test_rays_command_line_skips_slow_subcommands() -> None:
    drained = ray_internals.drain_command("10.0.0.1:6379", "abc", "why", 20.5)
    told = subprocess.run([*drained[:3], "--help"], capture_output=True, text=True)
    assert told.returncode == 0, told.stderr
    commands = {line.split()[0] for line in told.stdout.partition("Commands:")[2].splitlines() if line}
    assert "start" in commands
    assert not commands & {"serve", "job", "list"}, "Ray imports them from elsewhere now"


def test_the_command_drain_node_takes_our_options() -> None:
    from ray.scripts.scripts import cli

    _, _, _, command, *options = ray_internals.drain_command("10.0.0.1:6379", "abc", "why", 20.5)
    assert command in cli.commands, "`ray drain-node` is gone"
    with cli.commands[command].make_context(command, options) as context:  # which refuses what it does not know
        assert context.params["deadline_remaining_seconds"] == 20
        assert (context.params["node_id"], context.params["reason_message"]) == ("abc", "why")


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere Ray ends its processes by their group")
def test_rays_processes_get_groups_of_their_own() -> None:
    from ray._private.services import start_ray_process

    groups = []
    for context in (nullcontext(), ray_internals.own_process_groups(), nullcontext()):
        with context:
            process = start_ray_process(["sleep", "600"], "gcs_server", fate_share=True).process
        groups.append(os.getpgid(process.pid) == os.getpgid(0))
        process.kill()
        process.wait()
    assert groups == [True, False, True], "ray._private.services.ConsolePopen no longer starts Ray's processes"
