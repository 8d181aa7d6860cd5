"""What a search has found, as the command line tells it: status, front, export, the live table, and the help."""

from __future__ import annotations

import csv
import io
import json
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from rich.console import Console

from recur_tune.cli import display, live_view
from recur_tune.cli.live_view import LiveView
from recur_tune.cli.main import cli
from recur_tune.common.parsing import parse
from recur_tune.config.trial import TrialConfig
from recur_tune.report.history import Volume, volumes
from recur_tune.search.record.directory import EVENTS, IDENTITY, MODEL, SearchDirectory
from recur_tune.training import RESULT, RESUME, TRIAL
from recur_tune.training.interrupt import stop_requests
from tests.cli.books import lines_of, record_report, record_trial, refused
from tests.cli.run import run
from tests.search.record import search

COMMANDS = [
    "search", "resume", "stop", "status", "front", "confirm", "trial", "add", "end", "report", "compare", "ui",
    "export", "track", "rename", "remove",
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


def test_the_live_table_ends_with_marks_roles_and_what_did_not_fit(results: Path) -> None:
    directory = SearchDirectory.open(results, "books")
    record_trial(directory, 7, "first 1", recurrence="none", window=32, overlap=0, learning_rate=1e-3)
    view = LiveView(directory)
    view.catch_up()
    console = Console(width=56, file=io.StringIO(), markup=False)
    console.print(view.table(8, 56))
    told = " ".join(console.file.getvalue().split())
    roles = "roles: T1 paper, T0 baseline, T7 first 1 of the space"
    assert f"● on the front; {roles}; no room for the fields " in told


def test_at_eighty_columns_a_trial_is_one_line(results: Path) -> None:
    outcome = run("front", "books", width=80)
    assert all(len(line) <= 80 for line in outcome.out.splitlines())
    assert [line.split()[0] for line in lines_of(outcome.out)[2:4]] == ["T1", "T0"]
    narrow = run("front", "books", width=50)
    assert all(len(line) <= 50 for line in narrow.out.splitlines())
    assert len(lines_of(narrow.out)[2:4]) == 2 and "learning_rate" in narrow.err and "--csv" in narrow.err
    assert all(len(line) <= 80 for line in run("status", "books", width=80).out.splitlines())


def test_front_as_json_and_csv(results: Path) -> None:
    told = json.loads(run("front", "books", "--json").out)
    assert [row["trial"] for row in told["front"]] == ["T1", "T0"]
    assert told["front"][0]["params"]["overlap"] == 8 and told["front"][0]["perplexity"] == 40.0
    rows = list(csv.DictReader(io.StringIO(run("front", "books", "--csv").out)))
    assert [row["trial"] for row in rows] == ["T1", "T0"]
    assert rows[0]["learning_rate"] == "0.00123456" and rows[0]["l_ins"] == "2" and rows[1]["l_ins"] == ""
    refused(run("front", "books", "--json", "--csv"), "csv:")


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


@pytest.mark.parametrize("trial", ["T1", "1", "t1"])
def test_export_copies_the_model_and_says_what_it_is(results: Path, tmp_path: Path, trial: str) -> None:
    target = tmp_path / "models" / "one"
    outcome = run("export", "books", "--trial", trial, "--to", target)
    assert outcome.code == 0 and f"recur-tune eval {target}" in outcome.err
    assert sorted(file.name for file in target.iterdir()) == ["config.json", "model.safetensors", "trial.yaml"]
    config = parse(TrialConfig, yaml.safe_load((target / "trial.yaml").read_text()))
    assert (config.window, config.overlap, config.tokens) == (32, 8, 80_000)
    refused(run("export", "books", "--trial", trial, "--to", target), "to:", str(target))


def test_a_model_saved_without_its_code_is_exported_with_it(results: Path, tmp_path: Path) -> None:
    settings = {"model_type": "recurrent_gpt2", "recurrence": {"l_ins": 2}}
    (SearchDirectory.open(results, "books").trial(1) / MODEL / "config.json").write_text(json.dumps(settings))
    assert run("export", "books", "--trial", "T1", "--to", tmp_path / "one").code == 0
    written = json.loads((tmp_path / "one" / "config.json").read_text())
    assert written == settings | {"auto_map": written["auto_map"]}
    places = written["auto_map"].values()
    assert all((tmp_path / "one" / f"{place.partition('.')[0]}.py").is_file() for place in places)


@pytest.mark.parametrize(
    ("trial", "words"),
    [
        ("T2", ["T2 is not on the front", "keep: all"]),
        ("T3", ["T3 is pruned"]),
        ("T4", ["T4 is running"]),
        ("T5", ["T5 is infeasible"]),
        ("T99", ["'T99'", "recur-tune front books"]),
        ("best", ["'best'"]),
        ("-1", ["'-1'"]),
    ],
)
def test_export_refuses_what_has_no_model(results: Path, tmp_path: Path, trial: str, words: list[str]) -> None:
    refused(run("export", "books", f"--trial={trial}", "--to", tmp_path / "model"), "trial: ", *words)
    assert not (tmp_path / "model").exists()


def test_export_says_what_a_folder_lacks(results: Path, tmp_path: Path) -> None:
    run_folder, other = tmp_path / "runs" / "a", tmp_path / "runs" / "other"
    refused(run("export", run_folder, "--to", tmp_path / "model"), f"name: there is no folder {run_folder}")
    for folder in (run_folder, other):
        folder.mkdir(parents=True)
    refused(run("export", other, "--to", tmp_path / "model"), "no trial.yaml")
    (run_folder / TRIAL).write_text("window: 32\n")
    no_model = "has no model before a first validation; go on: recur-tune train"
    refused(run("export", run_folder, "--to", tmp_path / "model"), no_model)


def test_export_of_an_interrupted_run_says_that_it_is_one(tmp_path: Path) -> None:
    folder = tmp_path / "a"
    (folder / RESUME).mkdir(parents=True)
    (folder / TRIAL).write_text("window: 32\n")
    (folder / "config.json").write_text("{}")
    outcome = run("export", folder, "--to", tmp_path / "early")
    assert outcome.code == 0 and f"{folder} is unfinished" in outcome.err
    (folder / RESULT).write_text("{}")
    assert "unfinished" not in run("export", folder, "--to", tmp_path / "late").err


def test_export_from_a_search_that_keeps_nothing_says_so(results: Path, tmp_path: Path) -> None:
    directory = SearchDirectory.open(results, "books")
    directory.change_spec(directory.spec.model_copy(update={"keep": "none"}))
    refused(run("export", "books", "--trial", "T2", "--to", tmp_path / "model"), "keep: none")


def test_exporting_into_an_empty_folder_is_fine(results: Path, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    assert run("export", "books", "--trial", "T0", "--to", tmp_path / "empty").code == 0
    assert (tmp_path / "empty" / "trial.yaml").is_file()


@pytest.fixture
def screen(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Console]:
    """Puts a console of our own where the live table is shown."""

    def put(**settings: Any) -> Console:
        console = Console(file=io.StringIO(), markup=False, **settings)
        monkeypatch.setattr(display, "stderr", console)
        monkeypatch.setattr(live_view, "stderr", console)
        return console

    return put


def test_off_a_terminal_every_event_is_a_line(results: Path, screen: Callable[..., Console]) -> None:
    console = screen(width=60)
    log = results / "books" / EVENTS
    SearchDirectory.open(results, "books").record("running", trial=4, after="The actor died")
    written = log.read_text()
    log.write_text("")
    with LiveView(SearchDirectory.open(results, "books")) as shown:
        shown.stage("starting Ray …")
        log.write_text(written)
    text = console.file.getvalue()  # type: ignore[attr-defined]
    lines = lines_of(text)
    assert lines[0] == "starting Ray …"
    assert "  T0 starts: baseline: none window 32 overlap 0 learning_rate 0.00123" in lines
    [ended] = [line for line in lines if line.startswith("  T1 complete")]
    assert "perplexity per word 40, FLOPs/token 32M, peak memory 11 MiB" in ended and "of 7 trials ended" in ended
    assert any("T6 failed (its worker [rank 0] died)" in line for line in lines)
    assert "  T4 goes on again, after: The actor died" in lines
    assert any("T5 infeasible (peak_memory 80 MiB is over the limit of 64 MiB)" in line for line in lines)
    assert "  note: MLflow has not got everything" in lines
    assert "\x1b" not in text


def test_on_a_terminal_there_is_a_table_with_states_and_front(results: Path, screen: Callable[..., Console]) -> None:
    console = screen(force_terminal=True, width=80, height=40, color_system=None)
    directory = SearchDirectory.open(results, "books")
    with LiveView(directory) as shown:
        shown.searching()
        console.print(shown)
    text = console.file.getvalue()  # type: ignore[attr-defined]
    for words in ("books", "searching …", "5 of 7 trials ended", "2 on the front", "hypervolume 0.", "of 80k"):
        assert words in text, words
    assert "Ray dashboard http://127.0.0.1:8265" in text and "note: MLflow has not got everything" in text
    assert "T6 failed: its worker [rank 0] died" in text
    assert display.sparkline([volume.value for volume in hypervolumes(directory)]) in text
    rows = [line.split() for line in text.splitlines() if " T" in line]
    assert ["●", "T1", "complete"] in [row[:3] for row in rows]
    assert ["T4", "running", "20k", "60"] in [row[:4] for row in rows]
    assert ["T5", "infeasible", "0", "-"] in [row[:4] for row in rows], "nothing is known of its quality"


@pytest.mark.parametrize("terminal", [False, True])
def test_ctrl_c_says_at_once_that_the_search_pauses_and_what_a_second_one_costs(
    results: Path, screen: Callable[..., Console], terminal: bool
) -> None:
    console = screen(force_terminal=terminal, width=300, height=40, color_system=None)
    with LiveView(SearchDirectory.open(results, "books")) as shown, stop_requests(shown.pausing) as asked:
        shown.searching()
        assert not asked()
        signal.raise_signal(signal.SIGINT)
        assert asked()
        if terminal:
            console.print(shown)
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
    text = console.file.getvalue()  # type: ignore[attr-defined]
    assert "pausing: each trial saves a checkpoint" in text
    assert "Ctrl-C again ends the search at once" in text and "since its last validation" in text


def hypervolumes(directory: SearchDirectory) -> list[Volume]:
    events = (event for event, _ in directory.events())
    return volumes(events, directory.spec.objectives, directory.state().reference)[1:-1]


@pytest.mark.parametrize(
    ("values", "bars"),
    [([], ""), ([3.0], ""), ([2.0, 2.0], ""), ([0, 1, 2, 3, 4, 5, 6, 7], "▁▂▃▄▅▆▇█"), ([5, 0, 5], "█▁█")],
)
def test_a_sparkline_goes_from_the_smallest_to_the_largest(values: list[float], bars: str) -> None:
    assert display.sparkline(values) == bars
    assert display.sparkline([9.0, *values], width=len(values)) == bars


@pytest.mark.parametrize(
    ("budget", "left"),
    [
        ({"trials": 7}, "about 40s left"),  # five have ended after 100 s
        ({"trials": 7, "wall_clock": 130}, "about 30s left"),
        ({"trials": 5}, ""),
    ],
)
def test_the_time_left_is_the_nearer_of_both_budgets(results: Path, budget: dict[str, float], left: str) -> None:
    shown = LiveView(SearchDirectory.open(results, "books"))
    shown.state.active_seconds = 100.0
    shown.spec = shown.spec.model_copy(update={"budget": shown.spec.budget.model_copy(update=budget)})
    assert shown.time_left() == left


def test_a_small_screen_shows_what_matters_most(results: Path) -> None:
    shown = LiveView(SearchDirectory.open(results, "books"))
    console = Console(file=io.StringIO(), width=80)
    console.print(shown.table(rows=3, width=80))
    text = console.file.getvalue()  # type: ignore[attr-defined]
    assert [name for name in ("T4", "T1", "T0", "T6") if f"{name} " in text] == ["T4", "T1", "T0"]
    assert "4 more trials" in text


def test_a_watch_sees_what_is_written_later(results: Path) -> None:
    directory = SearchDirectory.open(results, "books")
    shown = LiveView(directory)
    assert shown.headline().startswith("5 of 7 trials ended, 2 on the front, hypervolume")
    record_report(directory, 4, 80_000, 20.0, "complete")
    assert [event["trial"] for event in shown.news()] == [4]
    assert shown.headline().startswith("6 of 7 trials ended, 3 on the front") and list(shown.news()) == []


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
        assert parameter.param_type_name == "argument" or parameter.help, parameter.name  # type: ignore[attr-defined]
    assert all(len(line) <= 120 for line in outcome.out.splitlines())


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
