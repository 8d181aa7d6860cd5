"""A search that goes on when the terminal closes: a process of its own, with a log in the search directory."""

from __future__ import annotations

import subprocess
import sys
import time

from recur_tune.cli.display import stderr
from recur_tune.cli.options import command_line
from recur_tune.common.errors import UserError
from recur_tune.search.record.directory import SearchDirectory

LOG = "search.log"


def run_detached(directory: SearchDirectory, address: str | None) -> None:
    """Let `recur-tune resume` run the search in a session of its own, and leave once it is at work."""
    words = ["resume", directory.name, "--results", str(directory.path.parent)]
    if address is not None:
        words += ["--address", address]
    log = directory.path / LOG
    with log.open("ab") as output:
        start = output.tell()
        process = subprocess.Popen(
            [sys.executable, "-m", "recur_tune.cli.main", *words],
            stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT, start_new_session=True,
        )  # fmt: skip
    with stderr.status(f"starting {directory.name} …"):
        while not directory.is_running:
            if process.poll() is not None and not directory.is_running:
                said = log.read_bytes()[start:].decode(errors="replace").strip()
                if process.returncode:
                    raise UserError(f"name: {directory.name} did not start; it said: {said}")
                return
            time.sleep(0.2)
    stderr.print(f"{directory.name} runs by itself, as process {process.pid}; this terminal may be closed.")
    for command, why in (("status", "how it is doing"), ("logs", "what it says"), ("stop", "pause it")):
        stderr.print(f"{why}:  {command_line(command, directory)}", soft_wrap=True)
