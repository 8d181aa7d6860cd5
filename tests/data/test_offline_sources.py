"""Every corpus without a network, and those that need no file: the standard library's own text, which takes seconds to
read and is read once a process, and tales and recall, which are made up."""

from __future__ import annotations

import hashlib
import json
import os
import re
import subprocess
import sys
from itertools import islice
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from recur_tune.common.errors import UserError
from recur_tune.data.corpora.document import SPLITS, Split
from recur_tune.data.corpora.recall import RecallCorpus
from recur_tune.data.corpora.registry import CORPORA, open_corpus
from recur_tune.data.corpora.tales import HEROES, SCENES
from tests.data import no_network, texts


@pytest.mark.slow
@pytest.mark.parametrize("name", CORPORA)
def test_every_corpus_opens_without_a_network_or_says_what_it_needs(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("urllib.request.urlopen", no_network)
    try:
        corpus = open_corpus(name)
        read = getattr(corpus, "questions", corpus.documents)
        something = next(iter(read("validation")))
        assert corpus.fingerprint("validation")
    except UserError as error:
        assert CORPORA[name].needs != "nothing"
        assert name in str(error) and f"{name}:" in str(error), "the sentence says what to give instead"
    else:
        assert CORPORA[name].needs == "nothing" and something
        assert corpus.name == name


# --- stdlib ---


@pytest.mark.slow
def test_the_standard_librarys_text_fills_three_splits() -> None:
    documents = {split: texts("stdlib", split) for split in SPLITS}
    sizes = {split: sum(map(len, documents[split])) for split in SPLITS}
    assert sizes["train"] > 500_000 and sizes["validation"] > 20_000 and sizes["test"] > 20_000
    assert sizes["train"] > 3 * (sizes["validation"] + sizes["test"])
    assert all(len(document) >= 400 for split in SPLITS for document in documents[split])
    assert documents == {split: texts("stdlib", split) for split in SPLITS}


@pytest.mark.slow
def test_no_paragraph_of_the_standard_library_is_in_two_splits() -> None:
    paragraphs = {
        split: {part.strip() for text in texts("stdlib", split) for part in text.split(b"\n\n")} for split in SPLITS
    }
    assert not paragraphs["train"] & paragraphs["validation"]
    assert not paragraphs["train"] & paragraphs["test"]
    assert not paragraphs["validation"] & paragraphs["test"]


@pytest.mark.slow
def test_the_standard_librarys_text_is_the_same_in_every_process() -> None:
    # A few dozen files, so that the two processes do not parse the whole library.
    script = """
import hashlib, json
from recur_tune.data.corpora import stdlib

few = [path for path in stdlib.source_files() if path.name < "d"][:30]
stdlib.source_files = lambda: few
corpus = stdlib.StdlibCorpus()
for split in ("train", "validation", "test"):
    digests = [hashlib.sha256(document.data).hexdigest() for document in corpus.documents(split)]
    print(json.dumps([split, corpus.fingerprint(split), digests]))
"""
    printed = [
        subprocess.run(
            [sys.executable, "-c", script],
            env={**os.environ, "PYTHONHASHSEED": seed},
            cwd=Path(__file__).parents[2],
            check=True,
            capture_output=True,
            text=True,
        ).stdout
        for seed in ("1", "2")
    ]
    assert printed[0] == printed[1]
    assert all(digests for _, _, digests in map(json.loads, printed[0].splitlines()))


# --- tales ---


def heroes_and_scenes(tale: bytes) -> tuple[set[str], set[int]]:
    """Every hero that a tale names, and every scene that it has a word of."""
    words = set(re.findall("[A-Za-z]+", tale.decode()))
    scenes = {number for number, scene in enumerate(SCENES) if words & {*" ".join(scene).split()}}
    return words & {*HEROES.split()}, scenes


def test_no_two_scenes_share_a_word() -> None:
    words = " ".join([HEROES, *(" ".join(scene) for scene in SCENES)]).split()
    assert len(words) == len(set(words)), "so that any of its words tells a scene"


@pytest.mark.parametrize("split", SPLITS)
def test_a_tale_keeps_to_its_hero_and_its_scene(split: Split) -> None:
    told = [heroes_and_scenes(tale) for tale in texts("tales", split)]
    assert all(len(heroes) == len(scenes) == 1 for heroes, scenes in told)
    if split == "train":
        assert len({(*heroes,) for heroes, _ in told}) == len(HEROES.split())
        assert len({(*scenes,) for _, scenes in told}) == len(SCENES)


def test_tales_are_whole_sentences_and_the_splits_tell_others() -> None:
    tales = {split: texts("tales", split) for split in SPLITS}
    assert tales["test"] == texts("tales", "test")
    together = [tale for split in SPLITS for tale in tales[split]]
    assert len(set(together)) == len(together) and all(tale.endswith(b". ") for tale in together)
    assert sum(map(len, tales["train"])) > 600_000, "the base's pretraining reads nothing twice"
    prints = [open_corpus("tales").fingerprint(split) for split in SPLITS]
    assert len(set(prints)) == len(SPLITS)


# --- recall ---

recalls = st.builds(
    RecallCorpus, lag=st.integers(1, 6), line=st.integers(10, 220), values=st.integers(2, 26), facts=st.integers(1, 4)
)


def lines_of(data: bytes, length: int) -> list[bytes]:
    assert len(data) % length == 0
    lines = [data[begin : begin + length] for begin in range(0, len(data), length)]
    assert all(line.endswith(b"\n") and line.count(b"\n") == 1 for line in lines)
    return lines


def lags_of(corpus: RecallCorpus, data: bytes, answers: tuple[tuple[int, int], ...]) -> list[int]:
    """Check one document; return how many lines lie between each answer and the statement of its value."""
    lines, lags, unread = lines_of(data, corpus.line), [], 0
    letters = bytes(range(ord("A"), ord("A") + corpus.values))
    for begin, end in answers:
        asked = begin // corpus.line
        assert lines[asked].endswith(b" it was " + data[begin:end] + b"\n") and begin % corpus.line == corpus.line - 2
        assert end == begin + 1 and data[begin] in letters
        stated = unread
        assert lines[stated].endswith((b" it is " + data[begin:end] + b"\n")[-corpus.line :])
        assert not any(byte in range(ord("A"), ord("Z") + 1) for line in lines[stated + 1 : asked] for byte in line)
        lags.append(asked - stated)
        unread = asked + 1
    assert unread == len(lines), "every line belongs to a statement, its filler or its question"
    assert len(answers) == corpus.facts
    return lags


@settings(max_examples=30, deadline=None)
@given(recalls, st.sampled_from(["validation", "test"]))
def test_validation_and_test_ask_exactly_lag_lines_later(corpus: RecallCorpus, split: Split) -> None:
    for document in islice(corpus.documents(split), 20):
        assert lags_of(corpus, document.data, document.answers) == [corpus.lag] * corpus.facts


@settings(max_examples=20, deadline=None)
@given(recalls)
def test_training_asks_after_one_to_lag_lines(corpus: RecallCorpus) -> None:
    lags = [lag for d in islice(corpus.documents("train"), 200) for lag in lags_of(corpus, d.data, d.answers)]
    assert set(lags) == set(range(1, corpus.lag + 1))


def test_all_values_are_asked_for_about_equally_often() -> None:
    documents = list(RecallCorpus(values=4).documents("train"))
    asked = [document.data[begin] for document in documents for begin, _ in document.answers]
    assert len(documents) == 4096
    assert all(asked.count(letter) == pytest.approx(len(asked) / 4, rel=0.1) for letter in b"ABCD")


def test_recall_is_the_same_every_time_and_differs_between_splits() -> None:
    digests = [
        hashlib.sha256(b"".join(texts("recall:lag=3", split))).hexdigest()
        for split in ("train", "validation", "test", "train")
    ]
    assert digests[0] == digests[3] and len(set(digests)) == 3


def test_recalls_options_are_read_by_name() -> None:
    assert open_corpus("recall") == RecallCorpus() == open_corpus("recall:")
    assert open_corpus("recall:lag=3,line=20,values=16,facts=5") == RecallCorpus(lag=3, line=20, values=16, facts=5)
    assert open_corpus("recall:facts=5,lag=3") == RecallCorpus(lag=3, facts=5)
    corpora = ("recall", "recall:lag=3", "recall:line=20", "recall:values=9", "recall:facts=3")
    assert len({open_corpus(name).fingerprint("train") for name in corpora}) == len(corpora)


@pytest.mark.parametrize(
    "options",
    ["lag", "lag=", "lag=x", "lag=-1", "lag=1.5", "leg=3", "3", "lag=3;line=20", "lag==3", " lag=3", "name=3"],
)
def test_options_that_recall_does_not_understand_are_quoted(options: str) -> None:
    with pytest.raises(UserError, match=f"recall does not understand '{options}'"):
        open_corpus(f"recall:{options}")


@pytest.mark.parametrize(
    ("field", "value"),
    [("lag", 0), ("lag", 1001), ("line", 9), ("line", 4097), ("values", 1), ("values", 27), ("facts", 0)],
)
def test_options_out_of_range_say_what_the_range_is(field: str, value: int) -> None:
    with pytest.raises(UserError, match=rf"recall's {field} is {value}; it must be from \d+ to \d+"):
        open_corpus(f"recall:{field}={value}")
