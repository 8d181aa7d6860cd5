"""What the Train page of Ray's dashboard shows, from the actor that the page asks."""

from __future__ import annotations

from typing import Any

import psutil
import ray
from ray.train.v2._internal.state.state_actor import get_state_actor


def train_runs(search: str) -> dict[str, Any]:
    """Ray Train's runs of a search by their ids, the latest last."""
    actor = get_state_actor()
    runs = ray.get(actor.get_train_runs.remote()) if actor else {}
    return {run: about for run, about in runs.items() if about.name.rpartition("-")[0] == search}


def workers_of_latest_start(search: str) -> dict[int, int]:
    """Process ids by rank; none while Ray Train starts them."""
    actor = get_state_actor()
    attempts = ray.get(actor.get_train_run_attempts.remote()) if actor else {}
    latest = [list(attempts[run].values())[-1].workers for run in train_runs(search) if attempts.get(run)]
    workers = {worker.world_rank: worker.pid for worker in latest[-1]} if latest else {}
    return workers if all(psutil.pid_exists(pid) for pid in workers.values()) else {}
