"""Questions from files: the official formats, the splits of one file, and one sentence for what is none of them."""

from __future__ import annotations

import json
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from recur_tune.common.errors import UserError
from recur_tune.data.corpora.document import SPLITS
from recur_tune.data.corpora.facts import NAMES, NUMBERS, FactsCorpus
from recur_tune.data.corpora.hotpotqa import HotpotQAHub, parse_hotpotqa
from recur_tune.data.corpora.questions import places_of
from recur_tune.data.corpora.registry import check_corpus, open_corpus
from recur_tune.data.corpora.squad import parse_squad

OFFICIAL: dict[str, Any] = {
    "_id": "a1", "question": "Which river?", "answer": "Rhine", "supporting_facts": [["Bonn", 0]],
    "context": [["Koeln", ["On the Rhine.", " A city."]], ["Bonn", ["By the Rhine,", " not the Rhinelet."]]],
}  # fmt: skip
ON_THE_HUB = OFFICIAL | {
    "id": "a1",
    "supporting_facts": {"title": ["Bonn"], "sent_id": [0]},
    "context": {"title": ["Koeln", "Bonn"], "sentences": [text for _, text in OFFICIAL["context"]]},
}
SQUAD = {
    "data": [
        {
            "title": "x",
            "paragraphs": [
                {
                    "context": "It rains in Bonn. In Bonn it rains.",
                    "qas": [
                        {"id": "q1", "question": "Where?", "answers": [
                            {"text": "Bonn", "answer_start": 12}, {"text": "In Bonn", "answer_start": 18},
                            {"text": "Bonn", "answer_start": 12},
                        ]},
                        {"id": "q2", "question": "Why?", "answers": [], "is_impossible": True},
                        {"id": "q3", "question": "How?", "answers": [{"text": "Bonn", "answer_start": 13}]},
                    ],
                }
            ],
        }
    ]
}  # fmt: skip


def marked(question: Any) -> list[str]:
    return [question.paragraphs[number][begin:end] for number, begin, end in question.spans]


@pytest.mark.parametrize("row", [OFFICIAL, ON_THE_HUB], ids=["official", "Hub"])
def test_an_answer_of_hotpotqa_is_marked_where_it_is_supported(row: dict[str, Any]) -> None:
    [question] = parse_hotpotqa([row])
    assert question.paragraphs == ("Koeln. On the Rhine. A city.", "Bonn. By the Rhine, not the Rhinelet.")
    assert question.answers == ("Rhine",) and marked(question) == ["Rhine"]
    assert [number for number, _, _ in question.spans] == [1]  # neither where nothing supports it, nor inside a word


def test_an_answer_that_no_supporting_paragraph_has_may_stand_in_any() -> None:
    [question] = parse_hotpotqa([OFFICIAL | {"answer": "A city"}])
    assert [number for number, _, _ in question.spans] == [0]
    [missing] = parse_hotpotqa([OFFICIAL | {"answer": "Danube"}])
    assert missing.spans == () and missing.answers == ("Danube",)


@pytest.mark.parametrize("answer", ["yes", "no"])
def test_yes_and_no_stand_nowhere(answer: str) -> None:
    [question] = parse_hotpotqa([OFFICIAL | {"answer": answer, "question": "no or yes"}])
    assert question.spans == ()


def test_squad_marks_its_answers_itself() -> None:
    first, impossible, misplaced = parse_squad(SQUAD)
    assert first.answers == ("Bonn", "In Bonn") and marked(first) == ["Bonn", "In Bonn"]
    assert impossible.answers == () and misplaced.spans == ()


@pytest.mark.parametrize("lines", [False, True], ids=["JSON", "JSON lines"])
def test_one_file_becomes_three_splits_that_share_nothing(lines: bool, tmp_path: Path) -> None:
    rows, file = [OFFICIAL | {"_id": str(number)} for number in range(25)], tmp_path / "dev.json"
    file.write_text("\n".join(map(json.dumps, rows)) if lines else json.dumps(rows))
    corpus: Any = open_corpus(f"hotpotqa:{file}")
    found = {split: [question.name for question in corpus.questions(split)] for split in SPLITS}
    assert found["validation"] == ["8", "18"] and found["test"] == ["9", "19"]
    assert sorted(chain(*found.values()), key=int) == [str(number) for number in range(25)]
    assert len({corpus.fingerprint(split) for split in SPLITS}) == 3
    assert check_corpus(f"hotpotqa:{file}")["train"].files == 1


def test_a_folder_has_a_file_for_each_split(tmp_path: Path) -> None:
    for name in ("train", "dev"):
        (tmp_path / f"{name}.json").write_text(json.dumps([OFFICIAL | {"_id": name}]))
    corpus: Any = open_corpus(f"hotpotqa:{tmp_path}")
    assert [question.name for question in corpus.questions("validation")] == ["dev"]
    with pytest.raises(UserError, match="has no test split; it needs a file called test"):
        corpus.look("test")


def test_of_the_hub_the_development_set_is_the_test() -> None:
    sizes = {"train": 41, "validation": 3}
    corpus = HotpotQAHub(lambda split: [ON_THE_HUB | {"_id": f"{split} {n}"} for n in range(sizes[split])])
    found = {split: [question.name for question in corpus.questions(split)] for split in SPLITS}
    assert found["validation"] == ["train 0", "train 20", "train 40"]
    assert len(found["train"]) == 38 and found["test"] == ["validation 0", "validation 1", "validation 2"]


@pytest.mark.parametrize(
    ("corpus", "content", "sentence"),
    [
        ("hotpotqa", '{"data": []}', r"is not in the format of hotpotqa \(TypeError"),
        ("hotpotqa", '[{"question": "?"}]', r"is not in the format of hotpotqa \(KeyError: 'context'\)\.$"),
        ("squad", "[]", "is not in the format of squad"),
        ("squad", '{"data": 3}', "is not in the format of squad"),
        ("squad", "no json", r"is no JSON \("),
    ],
)
def test_a_file_of_another_format_is_one_sentence(corpus: str, content: str, sentence: str, tmp_path: Path) -> None:
    (tmp_path / "file.json").write_text(content)
    opened: Any = open_corpus(f"{corpus}:{tmp_path / 'file.json'}")
    with pytest.raises(UserError, match=sentence):
        list(opened.questions("train"))


@pytest.mark.parametrize("name", ["squad", "squad:", "squad:nowhere.json", "hotpotqa:nowhere"])
def test_a_file_that_is_not_there_is_one_sentence(name: str) -> None:
    with pytest.raises(UserError, match="names no file; write"):
        open_corpus(name)


def test_questions_are_no_texts() -> None:
    with pytest.raises(UserError, match="corpus: facts holds questions, and this needs texts"):
        open_corpus("facts").documents("train")


@given(st.text(alphabet="ab c", max_size=30), st.text(alphabet="ab", min_size=1, max_size=2))
def test_an_answer_is_found_wherever_it_stands_and_nowhere_else(text: str, answer: str) -> None:
    found = places_of(answer, [text], [0])
    assert all(text[begin:end] == answer for _, begin, end in found)
    assert bool(found) == (answer in text)
    assert any(f" {answer} " in f" {text} " for _ in found) == (f" {answer} " in f" {text} ")


@given(st.integers(1, 4), st.integers(2, 12), st.integers(12, 30))
def test_no_paragraph_of_facts_tells_the_answer_alone(lag: int, values: int, words: int) -> None:
    corpus = FactsCorpus(lag, values, words)
    for question, _ in zip(corpus.questions("test"), range(5), strict=False):
        first, *_, last = question.paragraphs
        assert {len(paragraph.split()) for paragraph in question.paragraphs} == {words}
        assert len(question.paragraphs) == lag + 1 and not set(NAMES) & set(first.split())
        assert set(last.split()) >= set(NAMES[:values]) and not set(NUMBERS) & set(last.split())
        assert question.answers == (NAMES[NUMBERS.index(first.split()[-1])],) and marked(question) == [
            *question.answers
        ]


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ("lag=0", "facts's lag is 0; it must be from 1 to 100"),
        ("values=99", "facts's values is 99; it must be from 2 to 12"),
        ("words=3", "facts's words is 3; it must be from 4 to 4096"),
        ("colour=1", "facts does not understand 'colour=1'"),
    ],
)
def test_bad_options_of_facts_are_one_sentence(options: str, sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        open_corpus(f"facts:{options}")
