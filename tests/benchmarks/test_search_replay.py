"""The replay of searches: its clock, its measures, and that all methods are treated alike."""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from optuna.trial import FixedTrial

from benchmarks.search_replay.clock import Finished, Job, replay
from benchmarks.search_replay.lcbench import costs
from benchmarks.search_replay.methods import METHODS
from benchmarks.search_replay.moasha import MOASHA
from benchmarks.search_replay.recorded import RecordedTable, points
from benchmarks.search_replay.results import Search, read
from benchmarks.search_replay.scores import found, quartiles, time_to, tokens_to, trajectory, volume_at
from benchmarks.search_replay.tables import score_all
from benchmarks.search_replay.task import History, Task, Verdict, cheap_third
from recur_tune.common.parsing import read_yaml
from recur_tune.config.trial import TrialConfig
from recur_tune.search.record.space_parsing import read_space

TABLE = Path(__file__).parents[2] / "benchmarks" / "recorded_trials.csv"


class Toy(Task):
    """A trial of window w costs w a token."""

    name, quality, longest, tolerance = "toy", "loss", 840, 0.0
    reference = [4.0, 4.0, 4.0]
    front = np.array([[1.0, 2.0, 2.0], [2.0, 1.0, 2.0], [3.0, 0.5, 2.0], [3.5, 0.4, 0.1]])

    def __init__(self, *validations: int) -> None:
        self.validations = validations

    def history(self, config: TrialConfig) -> History:
        return [(tokens, 1.0) for tokens in self.validations]

    def costs(self, config: TrialConfig) -> tuple[float, float]:
        return float(config.window), 1.0


class Scripted:
    """Hands out trials of these windows, and says what the script says at a window's validations."""

    def __init__(self, windows: Sequence[int], verdicts: dict[int, list[Verdict]] | None = None) -> None:
        self.jobs = [Job(TrialConfig(window=window)) for window in windows]
        self.verdicts, self.heard = verdicts or {}, list[tuple[int, int]]()

    def begin(self) -> Job | None:
        return self.jobs.pop(0) if self.jobs else None

    def report(self, job: Job, tokens: int, quality: float, last: bool) -> Verdict:
        window = job.config.window
        self.heard.append((window, tokens))
        verdict = self.verdicts[window].pop(0) if self.verdicts.get(window) else "go on"
        if verdict == "pause":
            self.jobs.append(job)
        return verdict


def test_eight_workers_spend_tokens_at_the_pace_of_their_trials() -> None:
    """Trials of 840 tokens that cost 1 to 8 a token, and a ninth of 1 for whoever is free first."""
    finished = replay(Toy(840), Scripted([*range(1, 9), 1]), workers=8, tokens=math.inf)
    after_the_first = 840 * sum(1 / cost for cost in range(1, 9))
    after_the_second = 840 + 840 + 840 + 1680 * sum(1 / cost for cost in range(3, 9))  # the ninth ends with it
    assert [one.spent for one in finished[:2]] == pytest.approx([after_the_first, after_the_second])
    assert [one.values[1] for one in finished] == [1, 2, 1, 3, 4, 5, 6, 7, 8]
    assert finished[-1][0] == pytest.approx(9 * 840)


def test_a_watcher_hears_how_far_running_trials_are() -> None:
    """Trials that cost 1 and 2 a token: when the first ends after 840 units of time, the second has half of its 840."""
    heard: list[tuple[float, list[tuple[int, int]]]] = []

    def watch(spent: float, running: list[tuple[Job, int]]) -> None:
        heard.append((spent, sorted((job.config.window, tokens) for job, tokens in running)))

    replay(Toy(210, 840), Scripted([1, 2]), workers=2, tokens=math.inf, watch=watch)
    assert heard == [
        (0, [(1, 0), (2, 0)]), (210 + 105, [(1, 210), (2, 105)]), (420 + 210, [(1, 420), (2, 210)]),
        (840 + 420, [(2, 420)]),
    ]  # fmt: skip


def test_one_worker_trains_one_after_the_other_and_stops_cost_what_was_trained() -> None:
    method = Scripted([5, 1, 2], {5: ["stop"]})
    finished = replay(Toy(10, 20), method, workers=1, tokens=50)
    assert [(one.spent, one.values[1], one.time) for one in finished] == [(30, 1, 70), (50, 2, 110)]
    assert method.heard == [(5, 10), (1, 10), (1, 20), (2, 10), (2, 20)]


def test_what_ends_after_the_last_token_does_not_count() -> None:
    assert replay(Toy(10, 20), Scripted([5, 1]), workers=1, tokens=39.9) == [(20, (1.0, 5.0, 1.0), 100)]


def test_a_paused_trial_goes_on_where_it_was() -> None:
    method = Scripted([5, 1], {5: ["pause"]})
    finished = replay(Toy(10, 20), method, workers=1, tokens=math.inf)
    assert method.heard == [(5, 10), (1, 10), (1, 20), (5, 20)]
    assert [one.spent for one in finished] == [30, 40]


@given(st.lists(st.tuples(*[st.integers(0, 5)] * 3), min_size=1, max_size=6))
def test_a_trajectory_counts_the_cells_that_are_dominated(ends: list[tuple[int, int, int]]) -> None:
    """In a box of 4 x 4 x 4 whose corners are whole numbers, brute force can count."""
    finished = [Finished(10.0 * place, tuple(map(float, one)), 5.0 * place) for place, one in enumerate(ends, 1)]
    curve = trajectory(Toy(1), finished)
    for spent, volume in curve:
        done = ends[: int(spent / 10)]
        cells = itertools.product(range(4), repeat=3)
        inside = sum(any(all(p <= c for p, c in zip(point, cell, strict=True)) for point in done) for cell in cells)
        assert volume == pytest.approx(inside / 64)
    assert volume_at(curve, 10.0 * len(ends)) == curve[-1][1]
    assert tokens_to(curve, curve[-1][1]) == next(spent for spent, volume in curve if volume == curve[-1][1])
    assert tokens_to(curve, 1.01) == math.inf
    assert time_to(Toy(1), finished, curve[-1][1]) == tokens_to(curve, curve[-1][1]) / 2 / (840 * 4)
    assert time_to(Toy(1), finished, 1.01) == math.inf


def test_found_is_what_some_finished_trial_is_no_worse_than() -> None:
    task = Toy(1)
    ends = [(1.0, 2.0, 2.0), (3.4, 0.4, 0.1), (2.1, 1.0, 2.0)]
    finished = [Finished(float(place), one, 0.0) for place, one in enumerate(ends)]
    assert found(task, finished, task.front) == 0.5  # the first as it is, the last by a better one
    task.tolerance = 0.06
    assert found(task, finished, task.front) == 0.75
    assert cheap_third(task.front).tolist() == [[3.5, 0.4, 0.1], [3.0, 0.5, 2.0]]
    assert found(task, [], task.front) == 0


def test_a_longer_replay_has_the_goal_and_the_shares_of_the_tokens() -> None:
    task, tokens = Toy(1), 60.0 * Toy.longest
    ends = [Finished(tokens / 2, (3.0, 3.0, 3.0), 1.0), Finished(1.5 * tokens, (2.0, 2.0, 2.0), 7.0)]
    chance, slow = (Search("toy", method, 8, 0, 60, longer=2.0) for method in ("random", "ours"))
    scored = score_all(task, {chance: ends, slow: ends[1:]})
    assert scored[chance]["100%"] == scored[chance]["50%"] == 1 / 64
    assert scored[chance]["to random's last"] == 0.5
    assert (scored[slow]["100%"], scored[slow]["to random's last"]) == (0, 1.5)
    assert scored[slow]["its time"] == 7.0 / (840 * 4)


def test_quartiles_may_be_infinite() -> None:
    assert quartiles([3, math.inf, 1, 2, math.inf]) == (2, 3, math.inf)
    assert quartiles([7]) == (7, 7, 7)
    assert quartiles([4, 1, 2, math.inf])[1] == 3, "the mean of the two in the middle"
    assert quartiles([1, math.inf])[1] == math.inf


@pytest.fixture(scope="module")
def table() -> RecordedTable:
    return RecordedTable(TABLE)


def test_the_table_has_every_point_of_its_space(table: RecordedTable) -> None:
    assert table.missing() == []
    assert len(table.rows) == 240
    values = [(history[-1][1], *table._costs[key]) for key, history in table.rows.items()]
    best = {one for one in values if not any(other != one and all(np.array(other) <= one) for other in values)}
    assert {tuple(point) for point in table.front.tolist()} == best


def test_the_space_of_the_second_table_is_a_grid_that_can_be_trained() -> None:
    fields = read_yaml(TABLE.with_name("recorded_spread.yaml"))
    space = read_space(fields["space"])
    every = list(points(space))
    assert len(every) == 2 * 3 * 3 * 2 * (1 + 6 * 2)  # rates, bodies, windows, overlaps, recurrences
    configs = {space.trial_config(space.draw(FixedTrial(point))) for point in every}
    assert len(configs) == len(every)
    assert {config.base for config in configs} == set(fields["bodies"])
    assert {config.batch * config.window for config in configs} == {512}


def test_a_continuum_has_no_table() -> None:
    with pytest.raises(ValueError, match="learning_rate is a continuous range"):
        list(points(read_space({"learning_rate": {"from": 1e-4, "to": 1e-3}})))


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    [
        "random",
        "NSGA-II",
        "MO-ASHA, mended",
        "Ray's OptunaSearch + ASHA",
        "ours: TPE + stopping",
        "ours: known costs + freeze-thaw",
    ],
)
def test_everybody_begins_alike_and_trains_nothing_twice(name: str, table: RecordedTable) -> None:
    method = METHODS[name](table, 3, 15)
    begun: list[TrialConfig] = []

    class Watched:
        def begin(self) -> Job | None:
            job = method.begin()
            begun.extend([job.config] if job and not job.said else [])  # or it was paused, and goes on
            return job

        def report(self, *words: Any) -> Verdict:
            return method.report(*words)

    finished = replay(table, Watched(), workers=2, tokens=15 * table.longest)
    assert [(one.recurrence, one.window, one.overlap) for one in begun[:2]] == [("none", 128, 0), ("pooled", 128, 0)]
    assert len({table.key(one) for one in begun}) == len(begun) >= 15
    assert finished and all(one.values in map(table.values, begun) for one in finished)


def test_ranks_as_published_stop_the_best() -> None:
    """Four trials, the fourth the worst, then one that beats all: the sort ends with index 3, of five."""
    ranked = [[2.0] * 3, [3.0] * 3, [4.0] * 3, [5.0] * 3]
    for mended in (True, False):
        rule = MOASHA([10, 20], 2, mended)
        for trial, values in enumerate(ranked):
            rule.should_continue(trial, 10, values)
        assert rule.should_continue(4, 10, [1.0] * 3) is mended
        assert rule.should_continue(4, 15, [9.0] * 3)  # decided once a rung


def test_costs_of_a_network_of_one_layer() -> None:
    flops, memory = costs(np.array([1, 2]), np.array([64, 64]), np.array([16, 16]))
    weights = 101 * 64 + 65 * 10
    assert (flops[0], memory[0]) == (2 * weights, 4 * (3 * weights + 16 * (100 + 64 + 10)))
    assert flops[1] == 2 * (101 * 64 + 65 * 37 + 38 * 10)  # half way down from 64 to 10


def test_half_a_line_of_results_is_made_again(tmp_path: Path) -> None:
    line = {"task": "toy", "method": "random", "workers": 1, "seed": 0, "trials": 2}
    whole = json.dumps({**line, "seconds": 1, "finished": [[10, 1, 2, 3]], "times": [7]})
    (tmp_path / "results").write_text(whole + "\n" + whole[:40])
    assert dict(read(tmp_path / "results")) == {Search(**line): [(10, (1, 2, 3), 7)]}
    assert dict(read(tmp_path / "none")) == {}
