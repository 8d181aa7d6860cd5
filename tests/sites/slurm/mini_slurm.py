"""A real SLURM of three nodes on one Linux machine: up in about a second, and gone without a trace.

Every node has a network address, process table, host name, /tmp and /dev/shm of its own, out of the kernel's
namespaces; all else is the machine's file system, as if it were shared storage. `mini_slurm.sh` makes the nodes, this
file drives them.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any

import psutil

from tests.waiting import PATIENCE, until

NODES = ("n1", "n2", "n3")
USERS = {"alice": 5001, "bob": 5002}  # known to this SLURM only, with homes of their own

_SCRIPT = Path(__file__).with_suffix(".sh")
_ADDRESSES = {node: f"10.77.0.{number}" for number, node in enumerate(NODES, start=1)} | {"ctl": "10.77.0.254"}
_COVERED = ("/tmp", "/home", "/root")
_NAMESPACES = ("--net", "--uts", "--ipc", "--pid", "--mount")
_PATH = f"{sys.prefix}/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

# cred_expire: a requeued job waits as long. No accounting and no cgroups: neither is to be had everywhere.
_SLURM_CONF = """
ClusterName=mini
SlurmctldHost=ctl(10.77.0.254)
SlurmUser=root
AuthType=auth/munge
AuthInfo=cred_expire=5
StateSaveLocation=/run/slurmctld
SlurmctldPidFile=/run/slurmctld.pid
SlurmctldLogFile={state}/slurmctld.log
SlurmdSpoolDir=/run/slurmd-%n
SlurmdPidFile=/run/slurmd-%n.pid
SlurmdLogFile={state}/slurmd-%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core_Memory
SchedulerParameters=bf_interval=1,sched_interval=2,batch_sched_delay=0
SlurmdParameters=config_overrides
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
SlurmdTimeout=10
MessageTimeout=5
KillWait=5
InactiveLimit=0
OverTimeLimit=0
MinJobAge=300
ReturnToService=2
JobRequeue=1
DefMemPerCPU=1000
GresTypes=gpu
{nodes}
PartitionName=DEFAULT Nodes=ALL MaxTime=1:00:00 OverSubscribe=NO PriorityTier=10 PreemptMode=OFF
PartitionName=main Default=YES
PartitionName=short MaxTime=00:02:00
PartitionName=urgent PriorityTier=20
PartitionName=preempt PriorityTier=1 PreemptMode=REQUEUE
"""


def available() -> str | None:
    """Why there can be no such SLURM here, in a sentence; None where there can."""
    if sys.platform != "linux" or os.geteuid() != 0:
        return "a SLURM of namespaces needs root on Linux"
    needed = ("slurmctld", "slurmd", "sbatch", "srun", "munged", "ip", "unshare", "nsenter", "setpriv", "bash")
    if missing := [name for name in needed if not shutil.which(name, path=_PATH)]:
        return f"a SLURM of namespaces needs {', '.join(missing)}, not found here (`make packages` installs them)"
    attempt = "mount -t tmpfs tmpfs /run && mknod /run/x c 1 3 && ip link add type bridge && ip link add type veth"
    command = ["unshare", *_NAMESPACES, "--fork", "--mount-proc", "sh", "-c", attempt]
    result = subprocess.run(command, capture_output=True, text=True, env={"PATH": _PATH})
    return f"a SLURM of namespaces is not allowed here: {result.stderr.strip()}" if result.returncode else None


class _Entered(subprocess.Popen[str]):
    """A command in other namespaces, whose parent, nsenter, stays outside.

    Signals are for the command. Were nsenter killed, the dead command would wait for a process outside to reap it, and
    its namespaces could not end before that.
    """

    def send_signal(self, sig: int) -> None:
        if self.poll() is not None:
            return
        commands = psutil.Process(self.pid).children()
        for command in commands:
            command.send_signal(sig)
        if not commands:  # nothing was started yet
            super().send_signal(sig)


class MiniSlurm:
    """Three nodes n1 to n3, each with 4 cores, 6000 MB and two H100 that are not there, and a login node ctl.

    The partitions are main (the default), short (two minutes), urgent, and preempt, whose jobs are requeued for those
    of any other. Every node resolves its own name to 127.0.1.1, as Debian sets it up, and the others' to 10.77.0.x.
    `shared`, the checkout and the Python environment have the same paths everywhere. /tmp is each node's own; /root and
    /home are shared and start empty.
    """

    def __init__(self, shared: Path) -> None:
        self.shared = shared.resolve()
        self._outer: subprocess.Popen[bytes] | None = None
        self._state = Path()

    def __enter__(self) -> MiniSlurm:
        self.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.stop()

    def start(self) -> None:
        """Starts the login node and all others, and waits until every node is idle."""
        self.shared.mkdir(parents=True, exist_ok=True)
        self.shared.chmod(0o1777)
        self._state = Path(tempfile.mkdtemp(prefix="mini-slurm-")).resolve()
        self._write_state()
        command = ["unshare", *_NAMESPACES, "--fork", "--kill-child", str(_SCRIPT), str(self._state), "ctl"]
        with (self._state / "ctl.log").open("w") as log:
            self._outer = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=log, stderr=log, env=self.environment(None), cwd="/",
                start_new_session=True,
            )  # fmt: skip
        try:
            self._until(self._pid_file("ctl").exists, "the login node")
            for node in NODES:
                self._boot(node)
            self.ready()
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """Ends every process of every node at once, whatever it does, and removes what was written."""
        if self._outer is None:
            return
        try:
            # The first process of the namespaces is not gone before all others are, and its parent waits for it.
            os.kill(self.pid("ctl"), signal.SIGKILL)
        except (FileNotFoundError, ProcessLookupError):
            self._outer.kill()
        self._outer.communicate(timeout=PATIENCE)
        self._outer = None
        shutil.rmtree(self._state)

    def ready(self) -> None:
        """Waits until every node is up and without a job."""
        self._until(self._all_idle, "every node idle")

    def run(
        self, *words: str | Path, user: str | None = None, env: dict[str, str] | None = None, check: bool = True,
        timeout: float = PATIENCE, node: str = "ctl",
    ) -> subprocess.CompletedProcess[str]:  # fmt: skip
        """Runs a command on the login node, in `shared`, with the environment of a fresh login and `env`."""
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        with self.popen(*words, user=user, env=env, node=node, **pipes) as process:
            try:
                stdout, stderr = process.communicate(timeout=timeout)
            except BaseException:
                process.kill()
                raise
        if check and process.returncode:
            said = f"{stdout}{stderr}".strip()
            raise RuntimeError(f"{' '.join(map(str, words))}: status {process.returncode}: {said}")
        return subprocess.CompletedProcess([*map(str, words)], process.returncode, stdout, stderr)

    def popen(
        self, *words: str | Path, user: str | None = None, env: dict[str, str] | None = None, node: str = "ctl",
        **options: Any,
    ) -> subprocess.Popen[str]:  # fmt: skip
        """The same without waiting for it; signals reach the command. Options are those of Popen."""
        become = ["setpriv", f"--reuid={user}", f"--regid={user}", "--init-groups"] if user else []
        enter = ["nsenter", f"--target={self.pid(node)}", *_NAMESPACES, *become, "env", f"--chdir={self.shared}"]
        options = {"stdin": subprocess.DEVNULL, "text": True, "start_new_session": True} | options
        return _Entered([*enter, *map(str, words)], env=self.environment(user, env), **options)

    def on_node(self, node: str, *words: str | Path, **options: Any) -> subprocess.CompletedProcess[str]:
        """Runs a command on a node, past SLURM: as one logged in there would. Options are those of `run`."""
        return self.run(*words, node=node, **options)

    def kill_node(self, node: str) -> None:
        """Ends every process of a node at once, as a crash would; SLURM needs some 17 s to notice."""
        process = Path(f"/proc/{self.pid(node)}")
        os.kill(self.pid(node), signal.SIGKILL)
        self._until(lambda: not process.exists(), f"the end of {node}")
        self._pid_file(node).unlink()

    def revive_node(self, node: str) -> None:
        """Boots a killed node with an empty /tmp.

        SLURM takes a node back that it never missed as if nothing had happened, and its jobs for running: where jobs
        are to be requeued, wait for that first.
        """
        self._boot(node)

    def cut_off(self, node: str) -> None:
        """Takes a node off the network: it goes on, but no packet reaches or leaves it."""
        self.run("ip", "link", "set", f"v-{node}", "down")

    def reconnect(self, node: str) -> None:
        """Puts a node back on the network."""
        self.run("ip", "link", "set", f"v-{node}", "up")

    def pid(self, node: str) -> int:
        """The first process of a node, as this process sees it."""
        return int(self._pid_file(node).read_text())

    def logs(self, lines: int = 20) -> str:
        """The last lines of every daemon's log."""
        texts = {path.name: path.read_text(errors="replace") for path in sorted(self._state.glob("*.log"))}
        return "\n".join("\n".join([f"== {name}", *text.splitlines()[-lines:]]) for name, text in texts.items())

    def _pid_file(self, node: str) -> Path:
        return self._state / f"{node}.pid"

    def _boot(self, node: str) -> None:
        """Makes a node's namespaces inside the login node's, so that they end with it."""
        network = ("nsenter", f"--net=/run/netns/{node}")
        rest = ("unshare", "--uts", "--ipc", "--pid", "--mount", "--fork", _SCRIPT, self._state, node)
        with (self._state / f"{node}.log").open("a") as log:
            self.popen("setsid", "--fork", *network, *rest, stdout=log, stderr=log).wait()
        self._until(self._pid_file(node).exists, f"the start of {node}")

    def _all_idle(self) -> bool:
        shown = self.run("sinfo", "--noheader", "--partition=main", "--states=idle", "--format=%D %T", check=False)
        return shown.stdout.split() == [str(len(NODES)), "idle"]

    def _until(self, condition: Callable[[], bool], what: str) -> None:
        assert self._outer
        outer = self._outer
        until(condition, what, self.logs, hopeless=lambda: outer.poll() is not None)

    def environment(self, user: str | None, more: dict[str, str] | None = None) -> dict[str, str]:
        """That of a fresh login, and more."""
        login = {"USER": user or "root", "HOME": f"/home/{user}" if user else "/root", "PATH": _PATH, "LANG": "C.UTF-8"}
        return login | {"LOGNAME": login["USER"], "SLURM_CONF": f"{self._state}/slurm.conf"} | (more or {})

    def _write_state(self) -> None:
        """Everything the script and the daemons read."""
        self._state.chmod(0o755)  # every user reads slurm.conf
        checkout = Path(__file__).parents[3]
        kept = [self.shared, self._state, checkout, Path(sys.prefix), Path(sys.base_prefix)]
        kept += [path.resolve() for path in kept]  # what a link leads to, too
        covered = {path for path in kept if any(path.is_relative_to(folder) for folder in _COVERED)}
        nodes = "\n".join(
            f"NodeName={node} NodeAddr={_ADDRESSES[node]} CPUs=4 RealMemory=6000 Gres=gpu:h100:2" for node in NODES
        )
        files = {
            "kept": "".join(f"{path}\n" for path in sorted(covered)),  # sorted: a folder before those within it
            "nodes": "\n".join(NODES),
            "slurm.conf": _SLURM_CONF.format(state=self._state, nodes=nodes),
            "gres.conf": "Name=gpu Type=h100 File=/run/gpus/nvidia[0-1]\n",
            "cgroup.conf": "CgroupPlugin=cgroup/v1\n",  # which asks for none until a cgroup is made, and none is
            "passwd": Path("/etc/passwd").read_text()
            + "".join(f"{user}:*:{uid}:{uid}::/home/{user}:/bin/bash\n" for user, uid in USERS.items()),
            "group": Path("/etc/group").read_text() + "".join(f"{user}:x:{uid}:\n" for user, uid in USERS.items()),
        }
        for host in _ADDRESSES:
            names = _ADDRESSES | {"localhost": "127.0.0.1", host: "127.0.1.1"}
            files[f"hosts.{host}"] = "".join(f"{address} {name}\n" for name, address in names.items())
        for name, text in files.items():
            (self._state / name).write_text(text)
        key = self._state / "munge.key"
        key.touch(mode=0o600)
        key.write_bytes(os.urandom(128))
