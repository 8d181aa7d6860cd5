"""The start of a Ray cluster of our own, where Ray itself fails; Ray stands in, since it cannot be made slow."""

from __future__ import annotations

from types import SimpleNamespace
from unittest import mock

import pytest
import ray

from recur_tune.cluster import connection
from recur_tune.cluster.connection import connected
from recur_tune.common.errors import UserError
from tests.ports import taken_port

TOO_SLOW = Exception("The current node timed out during startup. This could happen because some of the raylet failed")


@pytest.fixture
def init(monkeypatch: pytest.MonkeyPatch) -> mock.Mock:
    """Ray's start, which succeeds unless it is told otherwise."""
    init = mock.Mock(return_value=SimpleNamespace(dashboard_url="127.0.0.1:8265"))
    monkeypatch.setattr(ray, "init", init)
    monkeypatch.setattr(connection, "living_nodes", lambda: [{"CPU": 2.0}])
    return init


def test_a_start_that_was_too_slow_is_made_again(init: mock.Mock) -> None:
    init.side_effect = [TOO_SLOW, mock.DEFAULT]
    with connected(None) as cluster:
        assert cluster.dashboard == "http://127.0.0.1:8265"
    assert init.call_count == 2


def test_a_machine_that_is_always_too_slow_is_a_sentence(init: mock.Mock) -> None:
    init.side_effect = TOO_SLOW
    with pytest.raises(UserError, match=r"local gives no Ray cluster \(The current node timed out"), connected(None):
        pass
    assert init.call_count == 3


def test_what_cannot_be_joined_is_a_sentence_at_once_and_a_bug_stays_one(init: mock.Mock) -> None:
    init.side_effect = ConnectionError("nobody is there")
    with pytest.raises(UserError, match="nobody is there"), connected(None):
        pass
    init.side_effect = KeyError("bug")
    with pytest.raises(KeyError), connected(None):
        pass
    assert init.call_count == 2


@pytest.mark.slow
def test_a_port_of_something_else_is_told_from_a_cluster(capfd: pytest.CaptureFixture[str]) -> None:
    with taken_port() as port:
        address = f"127.0.0.1:{port}"
        with (
            pytest.raises(UserError, match=f"address: what answers at {address} is no Ray cluster"),
            connected(address),
        ):
            pass
    said = capfd.readouterr()
    assert (said.out, said.err) == ("", ""), "Ray has nothing to say before our sentence"
