"""SLURM's commands as functions: sbatch, squeue, scancel, scontrol, sinfo."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from recur_tune.common.errors import UserError
from recur_tune.sites.slurm.job_script import LOG
from recur_tune.sites.slurm.profile import parse_slurm_time

RUNNING = {"RUNNING", "COMPLETING", "SUSPENDED", "STOPPED", "SIGNALING", "STAGE_OUT"}
WAITING = {"PENDING", "CONFIGURING", "REQUEUED", "REQUEUE_HOLD", "REQUEUE_FED", "RESIZING", "SPECIAL_EXIT"}

# What SLURM's commands print on stderr.
_UNREACHABLE, _UNKNOWN_JOB = "Unable to contact slurm controller", "Invalid job id specified"
_IS_IT_UP = "try again later, or ask the site whether it is up (`scontrol ping` tells)."


@dataclass(frozen=True)
class Partition:
    """A partition with the maxima of its nodes."""

    name: str
    default: bool
    limit: float  # seconds; infinite where there is none
    nodes: int
    cpus: int
    gpus: int


@dataclass(frozen=True)
class QueuedJob:
    """A job as squeue shows it."""

    number: int
    state: str
    reason: str
    nodes: str  # SLURM's node list; empty while it waits
    time_left: str
    starts: str  # expected start, if SLURM tells it

    @property
    def is_running(self) -> bool:
        """Whether it has nodes."""
        return self.state in RUNNING

    @property
    def is_waiting(self) -> bool:
        """Whether it waits for nodes."""
        return self.state in WAITING

    def __str__(self) -> str:
        if self.is_waiting:
            expected = f", expected to start {self.starts}" if self.starts[:1].isdigit() else ""
            return f"job {self.number} waits in the queue ({self.reason}{expected})"
        if self.is_running:
            return f"job {self.number} runs on {self.nodes}, {self.time_left} left"
        return f"job {self.number} has ended as {self.state}{'' if self.reason == 'None' else f' ({self.reason})'}"


def check_there_is_slurm() -> None:
    """Refuse a machine without SLURM."""
    if shutil.which("sbatch") is None:
        raise UserError("slurm: there is no sbatch on this machine; run this on a login node of the cluster.")


def partitions() -> dict[str, Partition]:
    """Every partition that this user sees, by name."""
    found: dict[str, Partition] = {}
    for line in _ask("sinfo", "--noheader", "--format=%P|%l|%D|%c|%G").splitlines():
        name, limit, nodes, cpus, gres = (part.strip() for part in line.split("|"))
        default, name = name.endswith("*"), name.rstrip("*")
        gpus = sum(int(count) for count in re.findall(r"gpu(?::[^:,()]+)*:(\d+)", gres))
        seconds = float("inf") if limit in ("infinite", "n/a") else parse_slurm_time(limit)
        known = found.get(name, Partition(name, default, seconds, 0, 0, 0))
        cores = max(known.cpus, int(cpus.rstrip("+")))
        found[name] = Partition(name, default, seconds, known.nodes + int(nodes), cores, max(known.gpus, gpus))
    return found


def sbatch_command(script: Path) -> str:
    """The command that submits a script, as a line for a shell."""
    return shlex.join(_sbatch(script))


def submit(script: Path) -> int:
    """Submit a script with sbatch, to run in its folder; gives the job's number."""
    answer = _run(*_sbatch(script))
    number = answer.stdout.strip().split(";")[0]
    if answer.returncode or not number.isdigit():
        reason = " ".join(f"{answer.stderr} {answer.stdout}".replace("sbatch: error:", "").split())
        raise UserError(f"slurm: sbatch refused the job ({reason}).")
    return int(number)


def _sbatch(script: Path) -> list[str]:
    folder = str(script.parent).replace("%", "%%")  # a single % is a pattern of SLURM's
    return ["sbatch", "--parsable", f"--chdir={script.parent}", f"--output={folder}/{LOG}", str(script)]


def find(numbers: Iterable[int]) -> dict[int, QueuedJob]:
    """The jobs that SLURM still knows, by number; none on a machine without SLURM. An error is never taken for a queue
    without them."""
    asked = ",".join(map(str, numbers))
    if not asked or shutil.which("squeue") is None:
        return {}
    answer = _run("squeue", "--noheader", "--states=all", f"--jobs={asked}", "--format=%i|%T|%r|%N|%L|%S")
    if answer.returncode and _UNKNOWN_JOB not in answer.stderr:
        raise _failed("squeue", answer)
    found = {}
    for line in answer.stdout.splitlines():
        number, *rest = (part.strip() for part in line.split("|"))
        found[int(number)] = QueuedJob(int(number), *rest)
    return found


def cancel(number: int) -> None:
    """Cancel a job."""
    _ask("scancel", str(number))


def requeue(number: int) -> bool:
    """Requeue a job; False where the site does not allow it.

    A requeue ends the job's processes. scontrol may be one of them, and end by SLURM's signal before it has heard the
    answer; or the answer comes too late for it. Another job must not be submitted then: there would be two. So a job
    that no longer runs counts as requeued.
    """
    answer = _run("scontrol", "requeue", str(number))
    return answer.returncode <= 0 or _described(number, "JobState")["JobState"] != "RUNNING"


def nodes_without_script(number: int) -> list[str]:
    """The nodes left of a job that lost the node of its script; empty for any other job."""
    found = _described(number, "JobState", "BatchFlag", "BatchHost", "NodeList")
    if (found["JobState"], found["BatchFlag"]) != ("RUNNING", "1"):
        return []
    left = host_names(found["NodeList"])
    return [] if found["BatchHost"] in left else left


def _described(number: int, *names: str) -> dict[str, str]:
    """What scontrol says of a job by these names; empty where it says nothing."""
    told = _ask("scontrol", "show", "job", "--oneliner", str(number))
    return {name: match[1] if (match := re.search(rf"\s{name}=(\S+)", told)) else "" for name in names}


def host_names(nodes: str) -> list[str]:
    """`n[1-3]` -> n1, n2, n3."""
    return _ask("scontrol", "show", "hostnames", nodes).split()


def controller() -> str | None:
    """The host of SLURM's controller: the route to it is the cluster's network."""
    match = re.search(
        r"SlurmctldHost\[0\]\s*=\s*([^\s(]+)(?:\(([^)\s]+)\))?", _run("scontrol", "show", "config").stdout
    )
    return (match[2] or match[1]) if match else None


def _ask(*words: str) -> str:
    answer = _run(*words)
    if answer.returncode:
        raise _failed(words[0], answer)
    return answer.stdout


def _failed(program: str, answer: subprocess.CompletedProcess[str]) -> UserError:
    return UserError(f"slurm: {program} failed ({' '.join(answer.stderr.split())[:300]}).")


def _run(*words: str) -> subprocess.CompletedProcess[str]:
    try:
        answer = subprocess.run(words, capture_output=True, text=True, errors="replace", timeout=60)
    except FileNotFoundError:
        raise UserError(f"slurm: there is no {words[0]} on this machine.") from None
    except OSError as error:
        raise UserError(f"slurm: {words[0]} cannot be run on this machine ({error.strerror}).") from None
    except subprocess.TimeoutExpired:
        raise UserError(f"slurm: {words[0]} did not answer within a minute; {_IS_IT_UP}") from None
    if answer.returncode and _UNREACHABLE in answer.stderr:
        raise UserError(f"slurm: {words[0]} cannot reach SLURM's controller; {_IS_IT_UP}")
    return answer
