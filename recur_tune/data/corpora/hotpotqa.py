"""HotpotQA, distractor setting: questions over ten paragraphs, of which two are needed (Yang et al. 2018).

The official files are lists of questions; the Hub has the same with columns in the place of pairs. Answers are texts,
and their places are not marked: an answer stands wherever its text stands in the paragraphs that support it, or else
in any.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from recur_tune.data.corpora.document import Corpus, Split
from recur_tune.data.corpora.fetching import from_hub
from recur_tune.data.corpora.kind import CorpusKind
from recur_tune.data.corpora.questions import Question, QuestionCorpus, QuestionFiles, places_of

CLOSED = frozenset({"yes", "no", "noanswer"})  # the official F1 gives nothing for a part of these
_COMMIT = "1908d6afbbead072334abe2965f91bd2709910ab"
_ONE_IN = 20  # training questions are for validation; the official development set is the test, as in the paper


def hotpotqa_files(where: str) -> QuestionFiles:
    """The official JSON, whole or in splits."""
    return QuestionFiles(where, "hotpotqa", CLOSED, parse_hotpotqa)


class HotpotQAHub(QuestionCorpus):
    """HotpotQA from the Hub, whose test set has no answers."""

    name, closed = "hotpotqa", CLOSED

    def __init__(self, rows: Callable[[Split], Any]) -> None:
        self._rows = rows

    def questions(self, split: Split) -> Iterator[Question]:
        """Of the training set all but one in twenty, these, or the development set."""
        if split == "test":
            return parse_hotpotqa(self._rows("validation"))
        wanted = split == "validation"
        return parse_hotpotqa(
            row for number, row in enumerate(self._rows("train")) if (number % _ONE_IN == 0) == wanted
        )

    def fingerprint(self, split: Split) -> str:
        """The Hub's own, and which share of it counts."""
        return f"{self._rows('validation' if split == 'test' else 'train')._fingerprint} {split} {_ONE_IN}"


def parse_hotpotqa(rows: Iterable[Any]) -> Iterator[Question]:
    """Questions of either form."""
    for row in rows:
        context, facts = row["context"], row.get("supporting_facts", ())
        if isinstance(context, dict):
            context = list(zip(context["title"], context["sentences"], strict=True))
            facts = [(title, None) for title in facts["title"]] if facts else ()
        titles = [title for title, _ in context]
        paragraphs = tuple(f"{title}. {''.join(sentences).strip()}" for title, sentences in context)
        answer, supporting = row["answer"], {title for title, _ in facts}
        spans: list[tuple[int, int, int]] = []
        if answer not in CLOSED:
            needed = [number for number, title in enumerate(titles) if title in supporting]
            spans = places_of(answer, paragraphs, needed) or places_of(answer, paragraphs, range(len(paragraphs)))
        yield Question(str(row.get("_id") or row.get("id")), row["question"], paragraphs, (answer,), tuple(spans))


def _open(where: str) -> Corpus:
    if where:
        return hotpotqa_files(where)
    return HotpotQAHub(lambda split: from_hub("hotpotqa", "hotpotqa/hotpot_qa", "distractor", split, _COMMIT))


HOTPOTQA = CorpusKind(
    name="hotpotqa",
    summary="questions over ten paragraphs each, distractor setting (hotpotqa:FILE for the official JSON)",
    needs="the Hub or files",
    open=_open,
    task="question answering",
)
