"""A damaged line of the log is found, named, left out and, where a single byte is wrong, corrected."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import hypothesis
import hypothesis.strategies as st
import pytest

from recur_tune.search.record.directory import EVENTS, SearchDirectory
from recur_tune.search.record.event_log import corrected, damaged_lines, line_number, line_of, read_from
from tests.cli.run import run

OLD = Path(__file__).parents[2] / "version_0_1_0" / "search"
KINDS = st.sampled_from(["notice", "report", "trial"])
EVENTS_OF_ALL_KINDS = st.builds(
    lambda time, kind, text: {
        "time": time, "kind": kind, "trial": 8, "text": text, "params": {}, "costs": {"flops_per_token": time},
    },
    st.floats(allow_nan=False, allow_infinity=False), KINDS, st.text(max_size=30),
)  # fmt: skip


def read(file: Path, lines: list[bytes]) -> tuple[list[dict[str, object]], list[int]]:
    """The events that are read, and the numbers of the lines that are not."""
    file.write_bytes(b"".join(line + b"\n" for line in lines))
    damaged: list[int] = []
    events = [event for event, _ in read_from(file, 0, lambda line: damaged.append(line_number(file, line.offset)))]
    assert [line_number(file, line.offset) for line in damaged_lines(file)] == damaged
    return events, damaged


@hypothesis.given(event=EVENTS_OF_ALL_KINDS, data=st.data())
@hypothesis.settings(suppress_health_check=[hypothesis.HealthCheck.function_scoped_fixture], max_examples=300)
def test_a_flipped_byte_is_found_and_corrected(tmp_path: Path, event: dict[str, object], data: st.DataObject) -> None:
    before, line = {"time": 1.0, "kind": "notice", "text": "whole"}, line_of(event).encode()
    place = data.draw(st.integers(0, len(line) - 1))
    flip = data.draw(st.integers(1, 255).filter(lambda flip: line[place] ^ flip != ord("\n")))
    spoiled = line[:place] + bytes([line[place] ^ flip]) + line[place + 1 :]
    around = line_of(before).encode()
    events, damaged = read(tmp_path / "log", [around, spoiled, around])
    if damaged:
        assert (events, damaged) == ([before, before], [2])
        assert corrected(spoiled) == [event]
    else:  # the checksum's own name is spoiled, so that it is taken for another field
        assert events[1] == event | {name: events[1][name] for name in events[1].keys() - event.keys()}
        assert place >= len(line) - len(', "crc": "12345678"}')


def test_a_lost_line_break_is_given_back() -> None:
    one, other = {"time": 1.0, "kind": "notice", "text": "a"}, {"time": 2.0, "kind": "notice", "text": "b"}
    assert corrected(f"{line_of(one)}?{line_of(other)}".encode()) == [one, other]


@pytest.mark.parametrize("spoiled", [b"", b"{", b"\0" * 40, b"[]", b'{"time": 1}', b'{"kind": "notice"}', b"\xff\xfe"])
def test_what_cannot_be_corrected_is_not_made_up(tmp_path: Path, spoiled: bytes) -> None:
    whole = line_of({"time": 1.0, "kind": "notice", "text": "a"}).encode()
    for bad in (spoiled, whole[:-9], whole[5:] + whole, spoiled + whole):
        if bad != whole:
            assert read(tmp_path / "log", [whole, bad])[1] == [2] and corrected(bad) == []


def test_a_log_of_an_earlier_version_is_read_without_checksums_and_continued_with_them(tmp_path: Path) -> None:
    shutil.copytree(OLD, tmp_path / "search")
    directory = SearchDirectory.open(tmp_path, "search")
    before, events = directory.state(), [event for event, _ in directory.events()]
    assert len(events) == len((OLD / EVENTS).read_text().splitlines()) and not before.damaged
    directory.record("notice", text="now")
    last = (directory.path / EVENTS).read_text().splitlines()[-1]
    assert "crc" in json.loads(last) and directory.state().notices == ["now"]


def test_a_line_without_a_checksum_that_is_no_event_is_damaged(tmp_path: Path) -> None:
    """Every byte of an old log may have changed: what is read then is either an event or left out."""
    text = (OLD / EVENTS).read_bytes()
    for place in range(7, len(text), 3001):
        folder = tmp_path / str(place)
        folder.mkdir()
        for name in ("search.yaml", "search.json"):
            shutil.copy(OLD / name, folder)
        (folder / EVENTS).write_bytes(text[:place] + bytes([text[place] ^ 1]) + text[place + 1 :])
        for command in ("status", "front"):
            shown = run(command, folder.name, "--results", tmp_path)
            assert shown.code == 0 and "Traceback" not in shown.err, (place, shown)
