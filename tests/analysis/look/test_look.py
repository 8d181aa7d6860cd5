"""Where a state helps: words, groups and recall, by hand."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from recur_tune.analysis.look.comparison import KIND, POSITION, compare
from recur_tune.analysis.look.picture import panels
from recur_tune.analysis.look.recall import NAMES, make_questions, recall
from recur_tune.analysis.look.words import NAME, OTHER, RARE, Words, words_of
from recur_tune.common.errors import UserError
from recur_tune.common.windowing import Windowing
from recur_tune.data.tokenizers import load_tokenizer
from recur_tune.data.tokens import TokenisedSplit, prepare
from recur_tune.report.figures.pictures import write_picture
from recur_tune.tasks.language_modelling.evaluation import TokenScores, score_tokens
from tests.conftest import small_model
from tests.models.mechanisms import SPECS

_TALE = "Then Ann saw a cat. The cat saw Ann, and I saw THAT. \"No,\" said Bob: 'Yes.'"
_OTHER = "Ann ran."


@pytest.fixture
def text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> TokenisedSplit:
    """Two documents, a token a byte."""
    monkeypatch.setenv("RECUR_TUNE_CACHE", str(tmp_path / "cache"))
    folder = tmp_path / "texts" / "test"
    folder.mkdir(parents=True)
    for number, words in enumerate((_TALE, _OTHER)):
        (folder / f"{number}.txt").write_text(words)
    return prepare(f"text:{folder.parent}", "test", load_tokenizer("bytes"))


def at(word: str, which: int = 0) -> int:
    """The place of a word in the first document."""
    place = -1
    for _ in range(which + 1):
        place = _TALE.index(word, place + 1)
    return place


def test_words_are_known_by_their_last_occurrence_and_their_kind(text, monkeypatch):
    monkeypatch.setattr("recur_tune.analysis.look.words.RARE_AMONG", 18)
    words = words_of(text, load_tokenizer("bytes"))
    assert words.distance[at("cat", 1)] == at("cat", 1) - at("cat")
    assert words.distance[at("Ann", 1) + 1] == at("Ann", 1) - at("Ann"), "with a comma"
    assert words.distance[at("saw", 2)] == at("saw", 2) - at("saw", 1), "the last one counts"
    assert words.distance[at("Then")] == words.distance[len(_TALE)] == 0, "another document's Ann is not this one's"
    kinds = {
        one: words.kind[at(one)] for one in ("Then", "Ann", "saw", "a cat", "The cat", "I saw", "THAT", "No", "Bob")
    }
    assert [one for one, kind in kinds.items() if kind == NAME] == ["Ann", "Bob"]
    assert kinds["saw"] == OTHER and kinds["THAT"] == RARE
    assert words.document[len(_TALE) - 1] == 0 and words.document[len(_TALE)] == 1


def test_groups_are_means_of_differences_paired_over_documents():
    size = 6
    nll, zeros = np.array([1.0, 2, 3, 5, 7, 9], dtype=np.float32), np.zeros(size, dtype=np.int64)
    depth, position = np.array([0, 0, 0, -1, 0, 0]), np.array([0, 1, 2, 3, 0, 1])
    correct = np.zeros(size, dtype=bool)
    recurrent = TokenScores(nll - 1, correct, depth, position, 0.0)
    plain = TokenScores(np.where(np.arange(size) == 4, nll + 2, nll), correct, depth, position, 0.0)
    words = Words(zeros + 7, np.array([NAME] * size), np.array([0, 0, 0, 0, 1, 1]))
    groups = {(one.by, one.name): one for one in compare(recurrent, plain, words)}
    whole = groups["all", "all tokens"]
    assert whole.tokens == 5 and whole.difference == pytest.approx((-1 * 4 - 3) / 5)
    # Sums of deviations from -1.4 are 1.2 in one document and -1.2 in the other.
    assert whole.standard_error == pytest.approx((2 * 1.2**2 * 2 / 1) ** 0.5 / 5)
    assert groups[POSITION, "0"].difference == pytest.approx(-2) and groups[POSITION, "1 to 3"].tokens == 3
    assert groups[KIND, "name, seen before"].tokens == 5 and (KIND, "name, new") not in groups


def test_a_picture_has_every_group(tmp_path):
    nll = np.ones(4, dtype=np.float32)
    scores = TokenScores(nll, nll > 2, np.zeros(4, dtype=int), np.arange(4), 0.0)
    words = Words(np.array([0, 40, 1, 9000]), np.array([NAME, RARE, OTHER, NAME]), np.zeros(4, dtype=int))
    made = panels(compare(scores, scores, words))
    assert [len(one.figure["data"][0]["x"]) for one in made] == [4, 2, 4]
    write_picture(made, "look", tmp_path / "look.png")


def book() -> TokenisedSplit:
    """Two documents of random bytes."""
    tokens = np.random.default_rng(0).integers(97, 120, size=1500)
    return TokenisedSplit(tokens, np.zeros(1500), np.ones(1500), np.array([0, 700, 1500]), np.zeros(0, dtype=np.int64))


def test_the_fact_stands_so_far_before_its_question():
    bytes_ = load_tokenizer("bytes")
    questions = make_questions(book(), bytes_, 300, 10)
    for text_T, right in zip(questions.texts_BT, questions.right_B, strict=True):
        words = bytes_.decode(text_T.tolist())
        fact = words[words.index("\n\nThe name") :]
        assert words.index(f" {NAMES[right]}.\n\n") == len(words) - 300
        assert words.endswith(fact[: fact.index(f" {NAMES[right]}")])
    with pytest.raises(UserError, match="distance: 20 tokens have no room"):
        make_questions(book(), bytes_, 20, 10)
    with pytest.raises(UserError, match="more than any document has; the longest has 800"):
        make_questions(book(), bytes_, 2000, 10)


@pytest.mark.parametrize(
    ("kind", "windowing"),
    [(None, Windowing(32)), ("cache, in one softmax", Windowing(32)), ("pooled, one layer", Windowing(32, 9))],
    ids=["none", "cache", "pooled, overlapping"],
)
def test_answers_are_those_of_reading_every_name_on_its_own(kind, windowing, monkeypatch):
    monkeypatch.setattr("recur_tune.analysis.look.recall._BEFORE", 45)
    model = small_model(SPECS.get(kind), vocab_size=256, n_positions=40)
    questions = make_questions(book(), load_tokenizer("bytes"), 110, 2)
    found = recall(model, questions, 110, windowing, batch_size=1)
    chosen = spelt = 0
    for text_T, right in zip(questions.texts_BT, questions.right_B, strict=True):
        sums = []
        for answer in questions.answers:
            whole = np.array([*text_T, *answer])
            alone = TokenisedSplit(whole, whole, whole, np.array([0, len(whole)]), np.zeros(0, dtype=np.int64))
            scores = score_tokens(model, alone, windowing)
            sums.append(scores.nll[-len(answer) :].sum())
            spelt += bool(scores.correct[-len(answer) :].all()) and answer is questions.answers[right]
        chosen += int(np.argmin(sums)) == right
    assert (found.chosen, found.found) == (chosen / 2, spelt / 2)


def test_a_model_that_is_told_the_name_finds_it():
    questions = make_questions(book(), load_tokenizer("bytes"), 150, 16)
    model = small_model(None, vocab_size=256, n_positions=60)
    with torch.no_grad():  # the next byte of a name follows from the one before, whatever else was read
        sure = recall(_Parrot(model, questions), questions, 150, Windowing(50), batch_size=16)
    assert sure.found == sure.chosen == 2 / 16, "it knows one name of eight"


class _Parrot:
    """Always says a name that has no letter twice, and ends as the question does."""

    def __init__(self, model, questions) -> None:
        self._answer = questions.answers[6]
        self.training, self.recurrence, self.device = False, None, model.device
        self.lm_head = torch.nn.Linear(256, 256, bias=False)
        self.lm_head.weight.data = torch.eye(256)

    def eval(self) -> None:
        """It is."""

    def train(self, mode: bool) -> None:
        """Never."""

    def read(self, tokens_BT, state, overlap):
        """One-hot predictions: behind a byte of the name its next one, else its first."""
        behind = {None: self._answer[0]} | dict(zip(self._answer, self._answer[1:], strict=False))
        said = [[behind.get(token, self._answer[0]) for token in row] for row in tokens_BT.tolist()]
        top = 50.0 * torch.nn.functional.one_hot(torch.tensor(said), 256).float()
        return type("Reading", (), {"top_BTK": top, "state": None})()
