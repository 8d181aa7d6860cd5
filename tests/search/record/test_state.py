"""What a log means."""

from __future__ import annotations

from typing import Any

from recur_tune.cli.trial_tables import objective_columns
from recur_tune.report.figures.style import hover_lines
from recur_tune.search.record.state import SearchState, replay
from recur_tune.search.record.trial_text import chosen_fields
from tests.search.record import OBJECTIVES

COSTS = {"flops_per_token": 1e8, "peak_memory": 2e9}


def log(*lines: dict[str, Any]) -> SearchState:
    """Replay lines, one a second."""
    return replay({"time": float(second), **line} for second, line in enumerate(lines, start=100))


def made(number: int, **fields: Any) -> dict[str, Any]:
    return {"kind": "trial", "trial": number, "params": {"window": 300}, "costs": COSTS, **fields}


def running(number: int) -> dict[str, Any]:
    return {"kind": "running", "trial": number}


def report(number: int, tokens: int, perplexity: float | None = None, **fields: Any) -> dict[str, Any]:
    validation = None if perplexity is None else {"perplexity": perplexity}
    return {"kind": "report", "trial": number, "tokens": tokens, "loss": 3.5, "validation": validation, **fields}


def end(number: int, state: str, **fields: Any) -> dict[str, Any]:
    return {"kind": "end", "trial": number, "state": state, **fields}


def test_a_trial_from_its_proposal_to_its_end() -> None:
    lines = [
        {"kind": "search", "status": "started", "links": {"dashboard": "here"}},
        made(0, role="baseline"), running(0),
        report(0, 50, tokens_per_second=10.0, measured_peak_memory=7),
        report(0, 100, perplexity=30, tokens_per_second=12.0),
        end(0, "complete"),
        {"kind": "search", "status": "finished"},
    ]  # fmt: skip
    state = log(*lines)
    trial = state.trials[0]
    assert (trial.name, trial.role, trial.params, trial.costs) == ("T0", "baseline", {"window": 300}, COSTS)
    assert (trial.state, trial.reason, trial.tokens, trial.loss) == ("complete", "", 100, 3.5)
    assert (trial.started, trial.ended) == (102, 105)
    assert (trial.tokens_per_second, trial.measured_peak_memory) == (12.0, 7), "a report without a peak keeps the last"
    assert trial.values(OBJECTIVES) == [30, 1e8, 2e9]
    assert (state.status, state.started, state.updated, state.links) == ("finished", 100, 106, {"dashboard": "here"})


def test_logs_of_earlier_versions_call_the_trials_under_first_given() -> None:
    roles = ("given 12", "first 3", "baseline", "seed 1 of T7")
    state = log(*(made(number, role=role) for number, role in enumerate(roles)))
    assert [trial.role for trial in state.trials.values()] == ["first 12", "first 3", "baseline", "seed 1 of T7"]


def test_values_are_none_until_all_are_known() -> None:
    lines = [made(0), running(0), report(0, 50)]
    trial = log(*lines).trials[0]
    assert (trial.metrics, trial.value("perplexity"), trial.value("peak_memory")) == ({}, None, 2e9)
    assert trial.values(OBJECTIVES) is None
    assert trial.values(["flops_per_token"]) == [1e8] and trial.value("parameters") is None
    trial = log(*lines, report(0, 60, perplexity=40)).trials[0]
    assert trial.values(OBJECTIVES) == [40, 1e8, 2e9]
    assert trial.value("bits_per_byte") is None, "this validation did not say"
    assert trial.values_at(trial.validations[0], OBJECTIVES) == [40, 1e8, 2e9]


def test_a_resumed_trial_replaces_validations_after_its_checkpoint() -> None:
    first = [made(0), running(0), report(0, 10, 50), report(0, 20, 40), report(0, 30, 35)]
    trial = log(*first, end(0, "paused", reason="stop"), running(0), report(0, 20, 41)).trials[0]
    assert [(v.tokens, v.metrics["perplexity"]) for v in trial.validations] == [(10, 50), (20, 41)]
    assert (trial.tokens, trial.value("perplexity"), trial.started) == (20, 41, 101)


def test_a_trial_that_runs_again_has_not_ended() -> None:
    lines = [made(0), running(0), end(0, "failed", reason="out of memory")]
    trial = log(*lines).trials[0]
    assert (trial.state, trial.reason, trial.ended) == ("failed", "out of memory", 102)
    trial = log(*lines, running(0)).trials[0]
    assert (trial.state, trial.reason, trial.ended, trial.started) == ("running", "", None, 101)


def test_a_paused_trial_has_not_ended_and_the_infeasible_do_not_count() -> None:
    state = log(made(0), made(1), made(2), made(3), running(1), end(1, "paused"), end(2, "infeasible", reason="40 GiB"))
    assert [trial.state for trial in state.trials.values()] == ["waiting", "paused", "infeasible", "waiting"]
    assert state.trials[1].ended is None and state.trials[2].ended == 106
    assert state.trained == 3
    assert [trial.number for trial in state.in_state("waiting", "paused")] == [0, 1, 3]


def test_references_and_notices_add_up() -> None:
    state = log(
        {"kind": "reference", "values": {"perplexity": 40.0}}, {"kind": "notice", "text": "one"},
        {"kind": "reference", "values": {"peak_memory": 1e9, "perplexity": 50.0}}, {"kind": "notice", "text": "two"},
    )  # fmt: skip
    assert state.reference == {"perplexity": 50.0, "peak_memory": 1e9}
    assert state.notices == ["one", "two"]


def test_a_line_of_a_later_version_changes_nothing_but_the_time() -> None:
    lines = [made(0), running(0)]
    before, after = log(*lines), log(*lines, {"kind": "applause", "trial": 99})
    assert after.updated == 102
    after.updated, after.active_seconds = before.updated, before.active_seconds
    assert after == before


def test_time_counts_while_somebody_runs_the_search() -> None:
    start = {"kind": "search", "status": "started"}
    state = log(start, made(0), running(0), {**start, "time": 900.0}, {**report(0, 5), "time": 907.0})
    assert state.active_seconds == 2 + 7, "nobody was there between the last line of a run and the next start"


def test_an_empty_log_is_a_new_search() -> None:
    state = log()
    assert (state.status, state.trials, state.started, state.updated, state.trained) == ("new", {}, None, None, 0)


def test_the_validation_before_training_stands_in_tables() -> None:
    begun = report(0, 50, perplexity=30, untrained={"perplexity": 41.5})
    state = log(
        made(0), running(0), begun, report(0, 60, perplexity=20), made(1), running(1), report(1, 60, perplexity=8)
    )
    assert (state.trials[0].untrained, state.trials[0].metrics) == ({"perplexity": 41.5}, {"perplexity": 20})
    columns = objective_columns(state.trials.values(), ["perplexity", "flops_per_token"])
    assert columns["before\ntraining"] == ["41.5", "-"] and len(columns) == 3
    assert "before\ntraining" not in objective_columns([state.trials[1]], ["perplexity"]), "of an earlier version"
    assert "perplexity per word: 20 (before training 41.5)" in hover_lines(state.trials[0], "", ["perplexity"], {})


def test_fields_stand_in_one_order_whichever_trials_are_shown() -> None:
    values = {"batch": 8, "learning_rate": 1e-3, "window": 32, "recurrence": "none", "overlap": 0, "clip_norm": 2.0}
    one, other, short = ({**made(0), "params": params} for params in (values, values | {"window": 16}, {"batch": 4}))
    trials = log(one, {**other, "trial": 1}, {**short, "trial": 2}).trials
    order = ["recurrence", "window", "overlap", "learning_rate", "batch", "clip_norm"]
    assert all(chosen_fields(shown) == order for shown in ([trials[0]], [trials[0], trials[1]], trials.values()))
    assert chosen_fields([trials[2]]) == ["batch"]
