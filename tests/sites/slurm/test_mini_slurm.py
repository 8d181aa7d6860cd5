"""The SLURM of these tests is what it says it is."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from tests.sites.slurm.mini_slurm import NODES, USERS, MiniSlurm
from tests.waiting import PATIENCE, until

pytestmark = pytest.mark.slurm


def test_three_nodes_are_idle_in_every_partition(slurm: MiniSlurm) -> None:
    slurm.ready()
    shown = slurm.run("sinfo", "--noheader", "--format=%P %l %D %t %c %m %G").stdout.splitlines()
    node = "3 idle 4 6000 gpu:h100:2"
    assert shown == [f"main* 1:00:00 {node}", f"short 2:00 {node}", f"urgent 1:00:00 {node}", f"preempt 1:00:00 {node}"]


def test_a_job_runs_on_every_node(slurm: MiniSlurm) -> None:
    slurm.run("sbatch", "--wait", "--nodes=3", "--output=hosts.out", "--wrap=srun hostname")
    assert sorted((slurm.shared / "hosts.out").read_text().split()) == list(NODES)


def test_jobs_on_one_node_get_different_gpus(slurm: MiniSlurm) -> None:
    ask = ("srun", "--nodelist=n2", "--gres=gpu:1", "bash", "-c", "echo $CUDA_VISIBLE_DEVICES; sleep 4")  # together
    first, second = (slurm.popen(*ask, stdout=subprocess.PIPE) for _ in range(2))
    assert sorted(job.communicate(timeout=PATIENCE)[0].strip() for job in (first, second)) == ["0", "1"]


def test_names_resolve_as_on_debian(slurm: MiniSlurm) -> None:
    for node in (*NODES, "ctl"):
        script = f"import socket; print(*map(socket.gethostbyname, ['{node}', 'n1', 'n2', 'n3', 'ctl']))"
        own, *others = slurm.on_node(node, sys.executable, "-c", script).stdout.split()
        addresses = dict(zip((*NODES, "ctl"), ("10.77.0.1", "10.77.0.2", "10.77.0.3", "10.77.0.254"), strict=True))
        assert own == "127.0.1.1" and others == list((addresses | {node: own}).values())


def test_tmp_belongs_to_a_node_and_shared_to_all(slurm: MiniSlurm) -> None:
    seen = "echo $HOSTNAME >> /tmp/seen; touch shared-$HOSTNAME; cat /tmp/seen"
    for node in (*NODES, "ctl"):
        assert slurm.on_node(node, "bash", "-c", seen).stdout == f"{node}\n"
        assert (slurm.shared / f"shared-{node}").exists()
    assert not Path("/tmp/seen").exists()


def test_a_user_submits_and_is_that_user(slurm: MiniSlurm) -> None:
    script = f"import os, recur_tune; print(os.getuid(), os.path.expanduser('~'), os.access({__file__!r}, os.R_OK))"
    run = ("srun", "--nodes=1", "--nodelist=n3", sys.executable, "-c", script)
    assert slurm.run(*run, user="alice").stdout.split() == [str(USERS["alice"]), "/home/alice", "True"]
    assert slurm.run("ls", "/home/alice", user="bob", check=False).returncode


def test_a_port_of_a_node_is_open_to_other_nodes_until_it_is_cut_off(slurm: MiniSlurm) -> None:
    reach = ("bash", "-c", "exec 3<> /dev/tcp/n1/6818")  # where slurmd listens
    slurm.on_node("n2", *reach, user="bob")
    slurm.cut_off("n1")
    try:
        assert slurm.on_node("n2", "timeout", "1", *reach, check=False).returncode
    finally:
        slurm.reconnect("n1")
    slurm.on_node("n2", *reach, user="bob")


def test_a_killed_node_loses_its_processes_and_comes_back(slurm: MiniSlurm) -> None:
    slurm.ready()
    slurm.on_node("n3", "touch", "/tmp/here")
    with slurm.popen("sleep", "1000", node="n3") as sleeping:
        slurm.kill_node("n3")
        assert sleeping.wait(timeout=PATIENCE)
    slurm.revive_node("n3")
    slurm.ready()
    assert slurm.on_node("n3", "ls", "/tmp/here", check=False).returncode
    assert slurm.run("srun", "--nodes=3", "hostname").stdout.count("n3") == 1


def test_an_urgent_job_sends_a_preemptible_one_back_to_the_queue(slurm: MiniSlurm) -> None:
    slurm.ready()
    wait = ("--nodes=3", "--exclusive", "--output=/dev/null", "--wrap=sleep 100")
    job = slurm.run("sbatch", "--parsable", "--partition=preempt", *wait).stdout.strip()
    _wait_for(slurm, job, "JobState=RUNNING")
    slurm.run("srun", "--partition=urgent", "--nodes=1", "true")
    _wait_for(slurm, job, "Restarts=1")
    slurm.run("scancel", job)
    slurm.ready()


def test_a_failed_command_says_what_it_said(slurm: MiniSlurm) -> None:
    with pytest.raises(RuntimeError, match="invalid partition specified: nowhere"):
        slurm.run("sbatch", "--partition=nowhere", "--wrap=true")


def test_a_signal_reaches_the_command_and_nothing_waits_to_be_reaped(slurm: MiniSlurm) -> None:
    command = "trap 'echo asked; exit 3' USR1; echo up; sleep 1000 & wait"
    with slurm.popen("bash", "-c", command, user="alice", node="n2", stdout=subprocess.PIPE) as process:
        assert process.stdout and process.stdout.readline() == "up\n"
        process.send_signal(signal.SIGUSR1)
        assert process.stdout.readline() == "asked\n"
        assert process.wait(timeout=PATIENCE) == 3
    with pytest.raises(subprocess.TimeoutExpired):
        slurm.on_node("n2", "sleep", "2000", timeout=0.2)
    left = slurm.on_node("n2", "ps", "-eo", "stat=,args=").stdout
    assert "sleep 2000" not in left and "defunct" not in left


@pytest.mark.parametrize("how", ["stopped", "orphaned"])
def test_nothing_is_left(slurm: MiniSlurm, tmp_path: Path, how: str) -> None:
    """Neither after a stop nor when the process that started it is killed. (`slurm` says whether this can run.)"""
    if how == "stopped":
        other = MiniSlurm(tmp_path)
        other.start()
        state, processes = _all_of(other.run("printenv", "SLURM_CONF").stdout, other.pid("ctl"))
        other.popen("srun", "--nodes=3", "sleep", "1000", stderr=subprocess.DEVNULL)
        other.stop()
        assert not state.exists()
    else:
        script = f"""if True:
            import pathlib, time
            from tests.sites.slurm.mini_slurm import MiniSlurm
            slurm = MiniSlurm(pathlib.Path({str(tmp_path)!r}))
            slurm.start()
            print(slurm.run("printenv", "SLURM_CONF").stdout.strip(), slurm.pid("ctl"), flush=True)
            time.sleep(1000)"""
        with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True) as owner:
            assert owner.stdout
            conf, pid = owner.stdout.readline().split()
            state, processes = _all_of(conf, int(pid))
            os.kill(owner.pid, signal.SIGKILL)
    assert len(processes) > 8
    assert not psutil.wait_procs(processes, timeout=PATIENCE)[1]
    shutil.rmtree(state, ignore_errors=True)  # nobody was left to remove it


def _all_of(conf: str, ctl: int) -> tuple[Path, list[psutil.Process]]:
    first = psutil.Process(ctl)
    return Path(conf.strip()).parent, [first, *first.children(recursive=True)]


def _wait_for(slurm: MiniSlurm, job: str, words: str) -> None:
    until(lambda: words in slurm.run("scontrol", "show", "job", job).stdout, f"{words} of job {job}", slurm.logs)
