"""Questions of words that recur in texts: what is hidden, what is left to read, and where the answer stands in it."""

from __future__ import annotations

from collections import Counter
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from recur_tune.common.errors import UserError
from recur_tune.data.corpora.document import Document
from recur_tune.data.corpora.questions import BLANK, Question
from recur_tune.data.corpora.registry import check_corpus, open_corpus
from recur_tune.data.corpora.spans import (
    PIECE_QUESTIONS,
    PIECE_WORDS,
    SPAN_WORDS,
    SpansCorpus,
    pieces_of,
    recurring,
    sentences_of,
)
from recur_tune.tasks.question_answering.question_tokens import prepare_questions
from tests.tasks import word_tokenizer

FILLER = "and so it went on for the rest of that long day"
BEATLES = f"In Hamburg the Beatles met Astrid Kirchherr - {FILLER}. Her name was Astrid Kirchherr - {FILLER}."


class Texts:
    """Texts of a test, as a corpus."""

    def __init__(self, *texts: str) -> None:
        self._texts = texts

    def documents(self, split: str) -> Any:
        return (Document(text.encode()) for text in self._texts)


def asked(*texts: str) -> list[Question]:
    """The questions of texts among others, in which every word of the filler is common."""
    others = [f"Word {number} {FILLER}." for number in range(20)]
    corpus: Any = SpansCorpus(Texts(*texts, *others))  # type: ignore[arg-type]
    return list(corpus.questions("train"))


def test_what_recurs_is_hidden_in_one_sentence_and_marked_in_the_other() -> None:
    [question] = asked(BEATLES)
    first, second = sentences_of(BEATLES)
    assert question.answers == ("Astrid Kirchherr",)
    hidden, left = (first, second) if "Hamburg" in question.text else (second, first)
    assert question.text == hidden.replace("Astrid Kirchherr", BLANK) and question.paragraphs == (left,)
    begin = left.index("Astrid")
    assert question.spans == ((0, begin, begin + len("Astrid Kirchherr")),)


@pytest.mark.parametrize(
    ("text", "answers"),
    [
        (f"We went for Rome, {FILLER}. They went for Rome, {FILLER}.", {"Rome"}),
        (f"Later, {FILLER} with Robert. Later, {FILLER} without.", set()),  # a capital that begins a sentence
        (f"So it was later, {FILLER}. And later, {FILLER}.", set()),  # neither a name nor rare
        (f"A quokka of Rome, {FILLER}. The quokka of Rome, {FILLER}.", {"quokka of Rome"}),  # and no part of it
        (f"It was 1848, {FILLER}. Then in 1848, {FILLER}.", {"1848"}),
        (f"It was 18, {FILLER}. Then in 18, {FILLER}.", set()),
        (f"She met Ann Lee, {FILLER}. He met Ann Day, {FILLER}.", set()),  # part of a name
        (f"A brown quokka, {FILLER}. The quokka, {FILLER}.", {"quokka"}),  # a word of this text alone
        (f"We went for Rome and Rome, {FILLER}. They went for Rome, {FILLER}.", {"Rome"}),  # by the other
        (f"Rome is old. {FILLER.capitalize()} in Rome.", {"Rome"}),
        (f"We went for Rome, {FILLER}.", set()),
        (f"We went for Rome and Rome, {FILLER}.", set()),
        ("We went for Rome. They went for Rome.", set()),  # says too little
        (f"At O'Hara's house, {FILLER}. From O'Hara, {FILLER}.", {"O'Hara"}),
        (f"It went to J. R. Smith, {FILLER}. It was Mr. Smith, {FILLER}.", {"Smith"}),
    ],
)  # fmt: skip
def test_what_is_worth_hiding(text: str, answers: set[str]) -> None:
    questions = [one for one in asked(text, "Later on.") if one.name.startswith("train 0 ")]
    assert {one.answers[0] for one in questions} == answers
    for one in questions:
        assert one.text.count(BLANK) == 1 and one.answers[0] not in one.text and len(one.spans) >= 1


def test_names_come_before_rare_words() -> None:
    names = [f"Name{letter}" for letter in "abcdefg"]
    sentences = [f"So it went for {name}, {FILLER}, emu, yak, gnu, ape, cod." for name in names for _ in range(2)]
    answers = [one.answers[0] for one in asked(" ".join(sentences))]
    assert len(answers) == PIECE_QUESTIONS and set(answers) <= set(names)


def test_a_long_sentence_is_asked_around_what_is_hidden() -> None:
    many = [f"word{number}" for number in range(60)]
    text = f"{' '.join(many[:30])} Rome {' '.join(many[30:])}. It went for Rome {FILLER}."
    [piece] = pieces_of(text)
    found = recurring(piece, common=set(FILLER.split()), rare=set())
    assert [question for _, question in found.pop("Rome")] == [
        f"{' '.join(many[18:30])} {BLANK} {' '.join(many[30:42])}", f"It went for {BLANK} {FILLER}.",
    ] and not found  # fmt: skip


def test_a_long_text_is_cut_at_sentences_into_pieces_that_are_full() -> None:
    sentences = [f"Sentence {number} {FILLER}." for number in range(100)]
    pieces = [[one.text for one in piece] for piece in pieces_of(" ".join(sentences))]
    assert list(chain(*pieces)) == sentences
    words = len(sentences[0].split())
    assert {len(piece) for piece in pieces[:-1]} == {PIECE_WORDS // words} and len(pieces[-1]) <= PIECE_WORDS // words


WORDS = st.sampled_from(["Ada", "Ben Lee", "1999", "Rhine", "the", "of", "saw", "a", "river", "and", "St", "o'er"])
SENTENCES = st.lists(WORDS, min_size=1, max_size=14).map(lambda words: "Then " + " ".join(words) + ".")
TEXTS = st.lists(
    st.lists(SENTENCES, min_size=1, max_size=20).map(" ".join), min_size=1, max_size=3
).map("\n\n".join)  # fmt: skip


@given(st.lists(TEXTS, min_size=1, max_size=3))
def test_nothing_is_lost_and_every_answer_stands_where_it_is_marked(texts: list[str]) -> None:
    pieces = [piece for text in texts for piece in pieces_of(text)]
    assert " ".join(one.text for piece in pieces for one in piece).split() == " ".join(texts).split()
    corpus: Any = SpansCorpus(Texts(*texts))  # type: ignore[arg-type]
    questions = list(corpus.questions("train"))
    assert questions == list(corpus.questions("train"))
    assert len({one.name for one in questions}) == len(questions)
    assert max(Counter(one.name.split()[1] for one in questions).values(), default=0) <= PIECE_QUESTIONS
    for one in questions:
        [answer], piece = one.answers, pieces[int(one.name.split()[1])]
        assert {one.paragraphs[number][begin:end] for number, begin, end in one.spans} == {answer}
        assert 1 <= len(answer.split()) <= SPAN_WORDS and answer not in one.text
        all_of_it, stated = [sentence.text for sentence in piece], one.text.replace(BLANK, answer)
        taken_out = Counter(" ".join(all_of_it).split()) - Counter(" ".join(one.paragraphs).split())
        assert any(stated in text and Counter(text.split()) == taken_out for text in all_of_it), "a sentence, no more"
        assert sum(len(sentence.words) for sentence in piece) <= PIECE_WORDS


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("He left. She stayed!  \"Why?\" 'Why not?'", 4),
        ("Dr. J. R. Smith met St. John of the U.S. Army. it went on.", 1),
        ("About 3.5 km. 12 men came (and left.) Then none", 3),
        ("", 0),
    ],
)
def test_sentences(text: str, count: int) -> None:
    found = sentences_of(text)
    assert len(found) == count and " ".join(found).split() == text.split()


def test_a_blank_is_the_tokenizers_mask_token(tmp_path: Path) -> None:
    (tmp_path / "train.txt").write_text(BEATLES)
    words = sorted({*BEATLES.replace(".", " ").replace(",", " ").split(), "<mask>", "…", ".", ","})
    with_mask, without = word_tokenizer(words), word_tokenizer(words)
    with_mask.add_special_tokens({"mask_token": "<mask>"})
    for tokenizer, blank in ((with_mask, "<mask>"), (without, "…")):
        split = prepare_questions(f"spans:{tmp_path}", "train", tokenizer)
        at = split.answers.index(["Astrid Kirchherr"])
        assert list(split.asked_of(at)).count(tokenizer.convert_tokens_to_ids(blank)) == 1
        assert [split.text_between(*span) for span in split.spans_of(at)] == ["Astrid Kirchherr"]


def test_a_folder_is_looked_at_as_one_of_texts(tmp_path: Path) -> None:
    for split in ("train", "validation"):
        (tmp_path / f"{split}.txt").write_text(BEATLES)
    assert check_corpus(f"spans:{tmp_path}")["train"].files == 1
    with pytest.raises(UserError, match="has no test split"):
        check_corpus(f"spans:{tmp_path}", ["test"])
    with pytest.raises(UserError, match="spans:nowhere names no folder; write spans:DIR"):
        open_corpus("spans:nowhere")
    corpus = open_corpus(f"spans:{tmp_path}")
    assert corpus.fingerprint("train") != open_corpus(f"text:{tmp_path}").fingerprint("train")
    with pytest.raises(UserError, match="corpus: spans holds questions, and this needs texts"):
        corpus.documents("train")


def test_texts_in_which_nothing_recurs_are_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "train.txt").write_text("All words here are other words.")
    with pytest.raises(UserError, match=r"the train split of spans:.* has no question with an answer"):
        prepare_questions(f"spans:{tmp_path}", "train", word_tokenizer(["All", "."]))
