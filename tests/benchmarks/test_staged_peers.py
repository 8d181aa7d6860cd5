"""Peers that choose how far a trial is trained: what was trained before is not paid for again."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from benchmarks.search_replay.clock import replay
from benchmarks.search_replay.recorded import RecordedTable, points
from benchmarks.search_replay.staged import StagedPeer
from recur_tune.search.record.space_parsing import read_space

TABLE = Path(__file__).parents[2] / "benchmarks" / "recorded_trials.csv"


class Scripted:
    """Asks for these points and shares, then for the last again and again; remembers what it hears."""

    def __init__(self, *asks: tuple[dict[str, Any], float]) -> None:
        self.asks, self.told, self.noted = list(asks), list[tuple[int, list[float]]](), 0
        self.asked = 0

    def ask(self) -> tuple[Any, dict[str, Any], float]:
        self.asked += 1
        return self.asked, *self.asks[min(self.asked, len(self.asks)) - 1]

    def tell(self, handle: Any, values: list[float]) -> None:
        self.told.append((handle, values))

    def note(self, point: dict[str, Any], values: list[float]) -> None:
        self.noted += 1


@pytest.fixture(scope="module")
def table() -> RecordedTable:
    return RecordedTable(TABLE)


def test_a_point_goes_on_where_it_was_and_what_is_known_costs_nothing(table: RecordedTable) -> None:
    first, second, *_ = points(read_space(table.search["space"]))
    peer = StagedPeer(
        table, proposer := Scripted((first, 0.25), (second, 0.25), (first, 0.5), (first, 0.25), (first, 1.0)), 0
    )
    peer.starts = []
    whole, other = (
        table.history(peer.spec.trial_config(peer.spec.parsed_space.fields_of(one))) for one in (first, second)
    )
    tokens = whole[-1][0] + other[0][0]
    finished = replay(table, peer, 1, tokens)
    assert [one.spent for one in finished] == [tokens], "all of the first and a quarter of the second"
    told = [round(values[0] * table.reference[0], 6) for handle, values in proposer.told if handle != 2]
    assert told[:4] == [round(whole[place][1], 6) for place in (0, 1, 0, 3)]


def test_the_points_that_all_begin_with_come_first_and_it_hears_of_them(table: RecordedTable) -> None:
    first, *_ = points(read_space(table.search["space"]))
    peer = StagedPeer(table, proposer := Scripted((first, 0.25)), 0)
    starts = len(peer.starts)
    assert starts >= 2
    replay(table, peer, 1, (starts + 0.5) * table.longest)
    assert proposer.noted == starts and proposer.told[0][0] == 1


def test_a_point_that_runs_is_not_trained_twice(table: RecordedTable) -> None:
    first, second, *_ = points(read_space(table.search["space"]))
    peer = StagedPeer(table, Scripted((first, 1.0), (first, 1.0), (second, 1.0)), 0)
    peer.starts = []
    jobs = [peer.begin(), peer.begin()]
    assert jobs[0] is not None and jobs[1] is not None and jobs[0].config != jobs[1].config
