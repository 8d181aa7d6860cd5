"""SQuAD's file format: articles of paragraphs, each with questions whose answers are marked in it (Rajpurkar et al.
2016). Version 2's questions without an answer have none here either, and are counted out."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from recur_tune.data.corpora.kind import CorpusKind
from recur_tune.data.corpora.questions import Question, QuestionFiles


def squad_files(where: str) -> QuestionFiles:
    """The official JSON, whole or in splits."""
    return QuestionFiles(where, "squad", frozenset(), parse_squad)


def parse_squad(file: Any) -> Iterator[Question]:
    """Questions in the order of their articles; an answer that does not stand where it is marked is not marked."""
    for article in file["data"]:
        for paragraph in article["paragraphs"]:
            text = paragraph["context"]
            for asked in paragraph["qas"]:
                marked = [(answer["text"], answer["answer_start"]) for answer in asked["answers"]]
                spans = {(0, at, at + len(answer)) for answer, at in marked if answer and text[at:].startswith(answer)}
                answers = tuple(dict.fromkeys(answer for answer, _ in marked))
                yield Question(str(asked["id"]), asked["question"], (text,), answers, tuple(sorted(spans)))


SQUAD = CorpusKind(
    name="squad",
    summary="questions in SQuAD's file format, squad:FILE",
    needs="a file",
    open=squad_files,
    task="question answering",
)
