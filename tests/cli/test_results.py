"""What a search has found, as the command line tells it: status, front, and the help."""

from __future__ import annotations

import csv
import io
import json
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

from recur_tune.cli.main import cli
from recur_tune.search.record.directory import EVENTS, IDENTITY, SearchDirectory
from recur_tune.search.record.spec import _MAY_CHANGE
from tests.cli.books import lines_of, record_report, refused
from tests.cli.run import run
from tests.search.record import search

COMMANDS = [
    "search", "resume", "stop", "status", "front", "confirm", "trial", "add", "end", "report", "compare", "ui",
    "export", "track", "rename", "remove", "look", "eval",
]  # fmt: skip


def test_status_of_all_is_a_line_per_search(results: Path) -> None:
    SearchDirectory.create(results, "later", search())
    outcome = run("status")
    header, books, later = lines_of(outcome.out)
    assert outcome.code == 0 and outcome.err == ""
    assert header.split() == ["search", "status", "trials", "front", "hypervolume", "time"]
    for word in ("books", "interrupted", "3 complete", "1 running", "1 infeasible", "0."):
        assert word in books
    assert later.split()[:2] == ["later", "new"] and "none yet" in later


def test_a_long_name_is_never_cut(results: Path) -> None:
    name = "quickstart-20261115-151233-with-a-tail"
    SearchDirectory.create(results, name, search())
    outcome = run("status", width=80)
    assert any(line.split()[0] == name for line in lines_of(outcome.out)), outcome.out


def test_status_without_any_search_says_how_to_make_one(tmp_path: Path) -> None:
    outcome = run("status", "--results", tmp_path)
    assert outcome.code == 0 and "recur-tune search" in outcome.out


def test_status_of_one_shows_every_trial_the_running_and_the_front_first(results: Path) -> None:
    outcome = run("status", "books")
    rows = [line.split() for line in lines_of(outcome.out)]
    names = [word for row in rows for word in row[:2] if word in {f"T{number}" for number in range(9)}]
    assert names[:7] == ["T4", "T1", "T0", "T6", "T5", "T3", "T2"]
    marked = [row[1] for row in rows if row[0] == "●" and row[1].startswith("T")]
    assert marked == ["T1", "T0"]
    for word in ("running", "complete", "pruned", "failed", "infeasible"):
        assert word in outcome.out
    assert outcome.err == "note: MLflow has not got everything\n"


def test_status_as_json(results: Path) -> None:
    one = json.loads(run("status", "books", "--json").out)
    assert one["status"] == "interrupted" and one["on_front"] == 2 and 0 < one["hypervolume"] < 1
    assert one["trials"] == {"complete": 3, "pruned": 1, "running": 1, "infeasible": 1, "failed": 1}
    assert one["links"] == {}, "the dashboard went with the process"
    every = json.loads(run("status", "--json").out)
    assert every["searches"] == [one] and every["results"] == str(results) and every["unreadable"] == []


def test_more_tokens_than_the_budget_has_are_explained(results: Path) -> None:
    explained = "last step is a whole one"
    assert explained not in run("status", "books").out + run("trial", "books", "T1").out
    SearchDirectory(results / "books").record("report", trial=1, tokens=80_400)
    assert f"80.4k of 80k, since its {explained}" in run("trial", "books", "T1").out
    assert f"a trial's {explained}" in run("status", "books").out


def test_status_tells_what_the_next_hour_is_expected_to_buy(results: Path) -> None:
    assert "is expected" not in run("status", "books").out, "no model has chosen"
    books = SearchDirectory(results / "books")
    event = next(event for event, _ in books.events() if event["kind"] == "trial" and event["trial"] == 4)
    log = books.path / EVENTS
    log.write_text(log.read_text() + json.dumps({**event, "time": time.time(), "trial": 7, "gain": 0.001}) + "\n")
    one = json.loads(run("status", "books", "--json").out)
    assert one["next_hour"]["hypervolume"] == pytest.approx(0.001 * one["next_hour"]["trials"])
    assert "the rest of the search, " in run("status", "books").out
    log.write_text(log.read_text() + json.dumps({**event, "time": time.time(), "trial": 8, "gain": 0.9}) + "\n")
    [line] = [line for line in lines_of(run("status", "books").out) if "is expected" in line]
    more, volume = map(float, re.findall(r"add ([0-9.]+) at most to the hypervolume of ([0-9.]+)", line)[0])
    assert more + volume == pytest.approx(1, abs=0.01), "there is no more than the whole box"
    gains = {"trials": [1, 1000], "expected": [0.01234, 0.01234], "low": [0.00004, 0.00004], "high": [0.031, 0.031]}
    books.record("outlook", **gains)
    told = run("status", "books").out
    assert f"is expected to add 0.012 to the hypervolume of {volume:g} (80 %: 0 to 0.031)" in told
    one = json.loads(run("status", "books", "--json").out)["next_hour"]
    assert (one["low"], one["hypervolume"], one["high"]) == pytest.approx((0.00004, 0.01234, 0.031))


def test_a_search_of_a_later_version_hides_no_other(results: Path) -> None:
    for name, identity in (("newer", '{"format": 99, "created": 1}'), ("broken", "["), ("odd", "{}")):
        SearchDirectory.create(results, name, search())
        (results / name / IDENTITY).write_text(identity)
    outcome = run("status")
    assert outcome.code == 0 and "books" in outcome.out
    assert "format 99" in outcome.err and "broken" in outcome.err and "odd" in outcome.err
    every = json.loads(run("status", "--json").out)
    assert {one["search"] for one in every["unreadable"]} == {"newer", "broken", "odd"}


def test_following_a_search_that_is_over_ends_at_once(results: Path) -> None:
    outcome = run("status", "books", "--follow")
    assert outcome.code == 0 and "T1 complete" not in outcome.err, "what was over before is in the table"
    assert "books" in outcome.out and "complete" in outcome.out
    refused(run("status", "--follow"), "follow:", "NAME")


def test_front_is_best_quality_first_with_what_was_chosen(results: Path) -> None:
    outcome = run("front", "books")
    lines = lines_of(outcome.out)
    assert [line.split()[0] for line in lines[2:4]] == ["T1", "T0"]
    reached, chosen = lines[2].split()[:5], lines[2].split()[5:]
    assert reached == ["T1", "40", "32M", "11", "MiB"]
    assert chosen == ["pooled", "32", "8", "2", "200", "0.00123"]
    assert lines[4] == "roles: T1 paper, T0 baseline"
    assert outcome.err == ""


def test_at_eighty_columns_a_trial_is_one_line(results: Path) -> None:
    outcome = run("front", "books", width=80)
    assert all(len(line) <= 80 for line in outcome.out.splitlines())
    assert [line.split()[0] for line in lines_of(outcome.out)[2:4]] == ["T1", "T0"]
    narrow = run("front", "books", width=50)
    assert all(len(line) <= 50 for line in narrow.out.splitlines())
    assert len(lines_of(narrow.out)[2:4]) == 2 and "learning_rate" in narrow.err
    assert "`recur-tune front books --csv` has all." in " ".join(narrow.err.split())
    other = " ".join(run("front", "books", "--objectives", "perplexity,parameters", width=50).err.split())
    assert "`recur-tune front books --objectives perplexity,parameters --csv` has all." in other
    chosen = " ".join(run("front", "books", "--under", "parameters=1M", width=50).err.split())
    assert "`recur-tune trial books T1` has all." in chosen
    assert all(len(line) <= 80 for line in run("status", "books", width=80).out.splitlines())


def test_front_as_json_and_csv(results: Path) -> None:
    told = json.loads(run("front", "books", "--json").out)
    assert [row["trial"] for row in told["front"]] == ["T1", "T0"]
    assert told["front"][0]["params"]["overlap"] == 8 and told["front"][0]["perplexity"] == 40.0
    rows = list(csv.DictReader(io.StringIO(run("front", "books", "--csv").out)))
    assert [row["trial"] for row in rows] == ["T1", "T0"]
    assert rows[0]["learning_rate"] == "0.00123456" and rows[0]["l_ins"] == "2" and rows[1]["l_ins"] == ""
    refused(run("front", "books", "--json", "--csv"), "csv:")


def test_what_there_was_before_training_is_in_a_trials_curve_and_in_the_csv(results: Path) -> None:
    assert "before training" not in run("trial", "books", "T1").out and "untrained" not in run("front", "--csv").out
    SearchDirectory(results / "books").record("report", trial=1, tokens=80_000, untrained={"perplexity": 61.25})
    curve = [line.split() for line in lines_of(run("trial", "books", "T1").out)]
    assert curve[curve.index(["before", "training", "61.25"]) + 1] == ["80k", "40"]
    assert json.loads(run("trial", "books", "T1", "--json").out)["untrained"] == {"perplexity": 61.25}
    assert json.loads(run("trial", "books", "T0", "--json").out)["untrained"] is None
    rows = list(csv.DictReader(io.StringIO(run("front", "books", "--csv").out)))
    assert [row["untrained_perplexity"] for row in rows] == ["61.25", ""]


def test_a_trial_that_ended_no_better_than_before_training_is_named(results: Path) -> None:
    books = SearchDirectory(results / "books")
    books.record("report", trial=1, tokens=80_000, untrained={"perplexity": 40.5})
    assert "before training" not in run("front", "books").err, "it learned a little"
    books.record("report", trial=0, tokens=80_000, untrained={"perplexity": 50.0})
    assert "note: T0 ended no better than before training; a lower" in run("front", "books").err


def test_front_of_other_objectives(results: Path) -> None:
    told = json.loads(run("front", "books", "--objectives", "bits_per_byte, parameters", "--json").out)
    assert told["objectives"] == ["bits_per_byte", "parameters"]
    assert [(row["trial"], row["bits_per_byte"]) for row in told["front"]] == [("T1", 4.0)]
    costs = json.loads(run("front", "books", "--objectives", "peak_memory", "--json").out)
    assert [row["trial"] for row in costs["front"]] == ["T0"]


def test_front_before_any_trial_ends_is_a_sentence(tmp_path: Path) -> None:
    SearchDirectory.create(tmp_path, "new", search())
    assert "no trial has reached the full budget" in run("front", "new", "--results", tmp_path).out
    assert json.loads(run("front", "new", "--results", tmp_path, "--json").out)["front"] == []


def test_the_help_lists_every_command_in_a_line() -> None:
    outcome = run("--help")
    assert outcome.code == 0
    for name, command in cli.commands.items():
        assert any(line.split()[:1] == [name] for line in outcome.out.splitlines()), name
        assert command.get_short_help_str(200).rstrip(".")


@pytest.mark.parametrize("name", COMMANDS)
def test_each_command_explains_itself_and_every_option(name: str) -> None:
    outcome = run(name, "--help")
    assert outcome.code == 0 and f"recur-tune {name}" in outcome.out.split("Options:")[0].split("Usage:")[1][20:]
    for parameter in cli.commands[name].params:
        shown = parameter.param_type_name != "argument" and not parameter.hidden  # type: ignore[attr-defined]
        assert not shown or parameter.help, parameter.name  # type: ignore[attr-defined]
    assert all(len(line) <= 120 for line in outcome.out.splitlines())


def test_the_help_of_resume_names_all_that_may_change() -> None:
    told = " ".join(run("resume", "--help").out.split())
    assert all(field in told for field in _MAY_CHANGE)


def test_the_help_needs_nothing_heavy() -> None:
    heavy = "torch", "ray", "mlflow", "optuna", "transformers", "pandas", "matplotlib", "moocore"
    code = f"import sys, recur_tune.cli.main; print([name for name in {heavy} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_without_a_name_the_latest_search_is_taken(results: Path) -> None:
    told = run("front", "--json")
    assert told.code == 0 and json.loads(told.out)["search"] == "books"
    assert "the latest search: books" in told.err
    assert "results/books/report.html" in run("report").out
    SearchDirectory.create(results, "later", search())
    newest = run("confirm")
    assert newest.code == 2 and "later has no trial at its full budget yet" in newest.err


def test_without_any_search_a_missing_name_is_one_sentence(tmp_path: Path) -> None:
    refused(run("front", "--results", tmp_path), "name: there are no searches in")


def test_of_trials_with_equal_objectives_one_is_on_the_front_and_names_the_others(results: Path) -> None:
    books = SearchDirectory(results / "books")
    best = books.state().trials[1]
    books.record("trial", trial=9, params={**best.params, "learning_rate": 0.5}, costs=best.costs)
    record_report(books, 9, 80_000, 40.0, "complete")
    outcome = run("front", "books")
    assert "equal to T1: T9" in outcome.out
    assert [row["trial"] for row in json.loads(run("front", "books", "--json").out)["front"]] == ["T1", "T0"]
