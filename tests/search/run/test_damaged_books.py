"""Whatever is cut, emptied or flipped in a search directory: readers show the rest, and a resume trains nothing twice
or says in one sentence what mends the search."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from ray.tune.schedulers import TrialScheduler

from recur_tune.common.errors import UserError
from recur_tune.search.record.directory import EVENTS, SNAPSHOT, STUDY, SearchDirectory
from recur_tune.search.record.log_follower import save_snapshot
from recur_tune.search.record.recovery import REPORTS, note_report
from recur_tune.search.record.requests import ask_for_trial, ask_to_end, take_ends, take_trials
from recur_tune.search.record.state import ENDED, SearchState
from recur_tune.search.run import driver
from recur_tune.search.run.driver import run_search
from recur_tune.search.run.outputs import Outputs
from recur_tune.search.run.repair import plan_repair
from tests.cli.run import run
from tests.search.run.driving import Driver, changed, price

TRIALS = 8


class Reached(Exception):
    """The books agree, and the search would start Ray."""


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> SearchDirectory:
    """A search that has finished, with a pruned trial, a snapshot, requests and a trial's own books."""
    directory = changed(tmp_path_factory.mktemp("books"), budget={"tokens": 100, "trials": TRIALS, "rungs": 2})
    with directory.hold_lease():
        directory.record("search", status="preparing")
        directory.record("search", status="started")
        directory.record("reference", values={"flops_per_token": 65.0})
        driver = Driver(directory)
        while trial := driver.ask():
            number = trial.config["number"]
            folder = directory.trial(number)
            for tokens, perplexity in ((50, 9.0 + number), (100, 5.0 + number)):
                end = {"state": "complete"} if tokens == 100 else {}
                validation = {"token_perplexity": perplexity}
                note_report(folder, {"tokens": tokens, "loss": 1.0, "validation": validation, **end})
                if driver.report(trial, tokens, perplexity, **end) == TrialScheduler.STOP:
                    break
        driver.log.record("search", status="finished")
    save_snapshot(directory.path / SNAPSHOT, directory.path / EVENTS, SearchState(), 0)
    (directory.path / "mlflow.json").write_text(json.dumps({"uri": "sqlite:///nowhere", "runs": {"0": "a"}}))
    ask_for_trial(directory, {"window": 16})
    ask_to_end(directory, 12)
    return directory


@pytest.fixture(autouse=True)
def no_ray(monkeypatch: pytest.MonkeyPatch) -> None:
    def reached(*_: object) -> None:
        raise Reached

    monkeypatch.setattr(driver, "connected", reached)
    monkeypatch.setattr(driver, "check_shapes", lambda spec: None)
    monkeypatch.setattr(driver, "missing_bases", lambda directory, spec: [])
    monkeypatch.setattr(driver, "Prices", lambda workers: price)


def resume(directory: SearchDirectory) -> None:
    """As far as Ray would start."""
    with pytest.raises(Reached):
        run_search(directory, Outputs(None, None, None))  # type: ignore[arg-type]


def spoiled(content: bytes) -> Iterator[tuple[str, bytes]]:
    """The content in every way in which a disk or a power cut spoils a file. One of several lines, such as a log, is
    another file wherever it is cut."""
    for tenth in range(1, 11) if content.count(b"\n") > 3 else (1, 5, 10):
        yield f"cut at {tenth}/11", content[: len(content) * tenth // 11]
    yield "emptied", b""
    place = len(content) // 2
    while content[place : place + 1] in (b"\n", b""):
        place -= 1
    yield "a flipped byte", content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :]
    yield "its last line lost", b"".join(content.splitlines(keepends=True)[:-1])


def files(directory: SearchDirectory) -> list[str]:
    found = (path for path in directory.path.rglob("*") if path.is_file() and path.stat().st_size > 1)
    return sorted(str(path.relative_to(directory.path)) for path in found if "trials" not in path.parts) + [
        f"trials/1/{REPORTS}"
    ]


def one_sentence(text: str) -> bool:
    return (
        bool(text)
        and "Traceback" not in text
        and all(line.startswith(("recur-tune: ", "note: ")) for line in text.splitlines())
    )


def told_once(directory: SearchDirectory, before: SearchState) -> None:
    """Every trial that had ended has its end, and the study tells the same and goes on with new numbers."""
    state = directory.state()
    for number, record in before.trials.items():
        assert state.trials[number].state == record.state and state.trials[number].params == record.params
        assert state.trials[number].values(["token_perplexity"]) == record.values(["token_perplexity"])
    searcher = Driver(directory).searcher
    told = {trial.number: trial for trial in searcher.study.get_trials()}
    ended = [number for number, record in state.trials.items() if record.state in ENDED]
    assert all(told[number].state.is_finished() for number in ended)
    assert not set(searcher.unfinished) & set(ended)


NAMES = [
    EVENTS, STUDY, "search.yaml", "search.json", SNAPSHOT, "mlflow.json", "requests/add", "requests/end",
    "lease/1", "lease/current", f"trials/1/{REPORTS}",
]  # fmt: skip


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.slow
def test_no_damage_of_a_file_is_a_traceback_or_trains_a_trial_twice(
    whole: SearchDirectory, tmp_path: Path, name: str
) -> None:
    [file] = [one for one in files(whole) if one.startswith(name)]
    content, before = (whole.path / file).read_bytes(), whole.state()
    for number, (how, spoil) in enumerate(spoiled(content)):
        directory = SearchDirectory(tmp_path / f"s{number}")
        shutil.copytree(whole.path, directory.path)
        (directory.path / file).write_bytes(spoil)
        for command in ("status", "front", *(["report"] if name in (EVENTS, STUDY) else [])):
            shown = run(command, directory.name, "--results", tmp_path)
            assert shown.code == 0 or (shown.code == 2 and one_sentence(shown.err)), (how, command, shown)
            if name == EVENTS and command == "status" and how == "a flipped byte":
                assert "line" in shown.err and "recur-tune repair" in shown.err
        try:
            resume(directory)
        except UserError as refusal:
            words = str(refusal)
            assert "\n" not in words, how
            if name.startswith(("search.", "lease/")):  # no repair makes up what was asked for; a lease ends by itself
                assert "could not be read" in words or "is running already" in words or "search.yaml" in words, words
                assert how != "cut at 10/11" or not name.startswith("search.yaml") or "checksum" in words
                continue
            assert f"recur-tune repair {directory.name}" in words, how
            plan = plan_repair(directory, price)
            with directory.hold_lease():
                plan.do()
            resume(directory)
        told_once(directory, before)


@pytest.fixture
def copied(whole: SearchDirectory, tmp_path: Path) -> SearchDirectory:
    shutil.copytree(whole.path, tmp_path / "copy")
    return SearchDirectory(tmp_path / "copy")


def test_a_log_that_lost_its_end_gets_it_back_before_anything_is_proposed(copied: SearchDirectory) -> None:
    file, before = copied.path / EVENTS, copied.state()
    lines = file.read_bytes().splitlines(keepends=True)
    file.write_bytes(b"".join(lines[: len(lines) * 2 // 3]))
    lost = set(before.trials) - set(copied.state().trials)
    assert lost
    resume(copied)
    [notice] = [text for text in copied.state().notices if "lost its end" in text]
    assert all(f"T{number}'s first line" in notice for number in lost)
    told_once(copied, before)


def test_an_empty_log_beside_trained_trials_is_refused(copied: SearchDirectory) -> None:
    (copied.path / EVENTS).write_bytes(b"")
    with pytest.raises(UserError, match=r"its log has no trial, and 8 have begun; `recur-tune repair copy` tells"):
        resume(copied)
    assert (copied.path / EVENTS).read_bytes() == b""
    assert "has lost T0, T1, T2, T3, T4 and 3 more" in run("status", "copy", "--results", copied.path.parent).err


def test_a_study_that_tells_other_values_than_the_log_is_made_anew(copied: SearchDirectory) -> None:
    before, file = copied.state(), copied.path / STUDY
    file.write_text(file.read_text().replace('"values":[5.0,', '"values":[4.0,'))
    resume(copied)
    told_once(copied, before)
    assert Driver(copied).told()[0].values == before.trials[0].values(copied.spec.objectives)
    assert file.with_suffix(".old").exists()


@pytest.mark.parametrize(
    ("request_", "why"),
    [
        (b"{", "Expecting property name"), (b"", "Expecting value"), (b"\xff", "codec can't decode"),
        (b"[]", "it is no"), (b'"x"', "it is no"), (b'{"wondow": 3}', "the space has no 'wondow'"),
    ],
)  # fmt: skip
def test_a_request_that_cannot_be_read_is_put_aside_with_one_line(
    copied: SearchDirectory, request_: bytes, why: str
) -> None:
    folder = copied.path / "requests"
    for file in folder.iterdir():
        file.unlink()
    ask_for_trial(copied, {"window": 32})
    kinds = ["add"] if b"wondow" in request_ else ["add", "end"]
    for kind in kinds:
        (folder / f"{kind}-0.json").write_bytes(request_)
    log = copied.open_log()
    assert list(take_trials(log)) == [({"window": 32}, "added")] and list(take_ends(log)) == []
    assert sorted(path.name for path in folder.iterdir()) == [f"damaged-{kind}-0.json" for kind in kinds]
    notices = log.state.notices[-len(kinds) :]
    assert all("cannot be read" in text and why in text for text in notices) and len(notices) == len(kinds)
