"""A cluster that falls silent while Ray waits for it: who looks at its port says so, and nobody else."""

from __future__ import annotations

import socket
import threading

import pytest

from recur_tune.cluster import liveness
from recur_tune.cluster.liveness import ClusterLost, while_connecting
from tests.waiting import until


@pytest.fixture(autouse=True)
def in_no_time(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("_SECONDS_BETWEEN_PROBES", "_SECONDS_TO_LEAVE"):
        monkeypatch.setattr(liveness, name, 0.02)


def test_a_store_that_dies_while_ray_connects_to_it_is_noticed() -> None:
    said: list[ClusterLost] = []
    store = socket.create_server(("127.0.0.1", 0))
    address = f"127.0.0.1:{store.getsockname()[1]}"
    with while_connecting(address, said.append):
        store.accept()  # it was looked at
        assert not said
        store.close()
        until(lambda: said, "last words")
    assert str(said[0]) == f"address: the Ray cluster at {address} is gone."
    assert said[0].exit_code == 75


def test_who_has_connected_is_left_in_peace() -> None:
    said: list[ClusterLost] = []
    store = socket.create_server(("127.0.0.1", 0))
    with while_connecting(f"127.0.0.1:{store.getsockname()[1]}", said.append):
        [looker] = _lookers()
        store.accept()
    store.close()
    looker.join()
    assert not said


@pytest.mark.parametrize("address", [None, "auto"])
def test_nobody_looks_where_there_is_no_address(address: str | None) -> None:
    with while_connecting(address, lambda loss: None):
        assert not _lookers()


def _lookers() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "connecting"]
