"""Questions to tokens to windows: every token of a text is read, and answers are marked where they stand."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from recur_tune.common.errors import UserError
from recur_tune.common.windowing import BEGIN, END, ENDS, NOT_SCORED, SCORED_FROM, STARTS, Windowing
from recur_tune.data.batches import WindowBatch
from recur_tune.data.tokenizers import load_tokenizer
from recur_tune.tasks.question_answering.question_tokens import QuestionSplit, prepare_questions
from recur_tune.tasks.question_answering.question_windows import (
    QUESTION,
    Layout,
    QuestionStream,
    question_batches,
    remarks_on,
)
from tests.tasks import SPECIAL, word_tokenizer

WORDS = [f"w{number}" for number in range(40)]
TOKENIZER = word_tokenizer([*WORDS, ".", "ä"])


def written(file: Path, questions: list[tuple[str, list[str], str]]) -> str:
    """A file of questions: what is asked, the paragraphs without their titles, the answer."""
    rows = [
        {"_id": str(number), "question": asked, "answer": answer, "context": [["w0", [text]] for text in texts],
         "supporting_facts": []}
        for number, (asked, texts, answer) in enumerate(questions)
    ]  # fmt: skip
    file.write_text(json.dumps(rows))
    return f"hotpotqa:{file}"


def prepared(folder: Path, *questions: tuple[str, list[str], str]) -> QuestionSplit:
    return prepare_questions(written(folder / "q.json", list(questions)), "train", TOKENIZER)


def layout_of(room: int, overlap: int = 0, asked: int = 2, paragraphs: Any = "joined") -> Layout:
    return Layout(Windowing(room + asked + 3, overlap, asked + 3), asked, paragraphs)


def text_of(first: int, count: int) -> str:
    return " ".join(WORDS[first : first + count])


ONE = ("w1 w2", [text_of(3, 5), text_of(10, 7)], "w12 w13")


def test_tokens_spans_and_texts_come_from_the_paragraphs(tmp_path: Path) -> None:
    split = prepared(tmp_path, ONE, ("w5", ["ä  w7 , w8"], "w7"))
    # A title, its full stop and the text: seven and nine tokens.
    assert split.paragraphs_of(0) == [(0, 7), (7, 16)] and split.token_count(0) == 16
    [(first, last)] = split.spans_of(0).tolist()
    assert TOKENIZER.decode(split.tokens[first : last + 1]) == split.text_between(first, last) == "w12 w13"
    [(first, last)] = split.spans_of(1).tolist()
    assert split.text_between(first, last) == "w7" and split.asked_of(1).tolist() == [4 + 5]
    assert split.answers == [["w12 w13"], ["w7"]] and split.names == ["0", "1"]
    assert split.summary()["documents"] == 2


def test_a_second_call_finds_what_the_first_prepared(tmp_path: Path) -> None:
    counts: list[int] = []
    corpus = written(tmp_path / "q.json", [ONE])
    first = prepare_questions(corpus, "train", TOKENIZER, counts.append)
    again = prepare_questions(corpus, "train", TOKENIZER, counts.append)
    assert counts == [16] and np.array_equal(first.tokens, again.tokens)


def test_a_window_has_the_question_in_front(tmp_path: Path) -> None:
    split, layout = prepared(tmp_path, ONE), layout_of(room=10, overlap=2)
    batch = layout.gather(split, layout.cut(split, 0)[:, None])
    cls, pad, sep, _ = SPECIAL.values()
    inputs, targets = batch.inputs_WBT[:, 0].tolist(), batch.targets_WBT[:, 0].tolist()
    asked = [4 + 1, 4 + 2]
    text = split.tokens.tolist()
    assert inputs == [
        [cls, *asked, sep, *text[:10], sep],
        [cls, *asked, sep, *text[8:16], sep, pad, pad],
    ]
    # w12 and w13 are the 11th and 12th position of the second paragraph's text: tokens 11 and 12.
    assert targets[0] == [0, *[NOT_SCORED] * 3, *[0] * 10, NOT_SCORED]
    assert targets[1] == [0, *[NOT_SCORED] * 3, 0, 0, 0, STARTS, ENDS, 0, 0, 0, *[NOT_SCORED] * 3]
    assert batch.fresh_WB.tolist() == [[True], [False]] and batch.starts == ("all", "none")
    assert (batch.scored, batch.step_losses, batch.mean_over) == (16, 1, 1)


@settings(max_examples=40)
@given(
    lengths=st.lists(st.integers(0, 12), min_size=1, max_size=5),
    room=st.integers(2, 20),
    overlap=st.integers(0, 5),
    paragraphs=st.sampled_from(["joined", "whole"]),
)
def test_every_token_is_scored_once_and_no_window_is_too_long(
    lengths: list[int], room: int, overlap: int, paragraphs: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    layout = layout_of(room, min(overlap, room - 1), paragraphs=paragraphs)
    texts = [text_of(at, length) for at, length in enumerate(lengths)]
    split = prepared(tmp_path_factory.mktemp("questions"), ("w1", texts, "yes"))
    table = layout.cut(split, 0)
    scored = [token for row in table for token in range(row[SCORED_FROM], row[END])]
    assert scored == list(range(split.token_count(0)))
    assert (table[:, END] - table[:, BEGIN] <= room).all() and table[:, 3].tolist() == [1] + [0] * (len(table) - 1)
    assert layout.gather(split, table[:, None]).inputs_WBT.shape == (len(table), 1, layout.windowing.size)
    if paragraphs == "whole":  # a paragraph that fits is cut nowhere
        edges = {int(edge) for row in table for edge in (row[BEGIN], row[END])}
        for begin, end in split.paragraphs_of(0):
            assert end - begin > room or not edges & set(range(begin + 1, end))


def test_whole_paragraphs_share_a_window_while_they_fit(tmp_path: Path) -> None:
    texts = [text_of(0, 3), text_of(3, 3), text_of(6, 1), text_of(7, 12)]  # of 5, 5, 3 and 14 tokens
    split, layout = prepared(tmp_path, ("w1", texts, "w8")), layout_of(room=10, overlap=1, paragraphs="whole")
    assert layout.cut(split, 0)[:, [BEGIN, END]].tolist() == [[0, 10], [10, 13], [13, 23], [22, 27]]
    assert remarks_on(split, layout) == ["paragraphs cut, with more than the 10 tokens of text in a window: 1."]


def chains(stream: QuestionStream, steps: int) -> list[WindowBatch]:
    return [next(stream) for _ in range(steps)]


def many(folder: Path, count: int = 7) -> QuestionSplit:
    return prepared(folder, *[("w1 w2 w3", [text_of(n, 9), text_of(n + 4, 9)], f"w{n + 5}") for n in range(count)])


def test_an_epoch_has_every_question_once_whoever_reads_it(tmp_path: Path) -> None:
    split, layout = many(tmp_path), layout_of(room=11)
    alone = QuestionStream(split, layout, windows=4, batch=2, seed=3)
    shared = [QuestionStream(split, layout, windows=4, batch=2, seed=3, rank=rank, workers=2) for rank in (0, 1)]
    first = chains(alone, 2)
    assert sum(batch.step_losses or 0 for batch in first) == len(split.chosen)  # four rows, of which one is half idle
    for batch, *parts in zip(first, *(chains(one, 2) for one in shared), strict=True):
        assert (batch.inputs_WBT == np.concatenate([part.inputs_WBT for part in parts], axis=1)).all()
        assert {part.step_losses for part in parts} == {batch.step_losses}
        assert {part.step_scored for part in parts} == {batch.step_scored}


def test_a_stream_goes_on_where_another_was(tmp_path: Path) -> None:
    split, layout = many(tmp_path), layout_of(room=11)
    one, other = (QuestionStream(split, layout, windows=4, batch=1, seed=0) for _ in range(2))
    chains(one, 6)  # into the second epoch
    other.seek(one.epoch, one.row)
    assert one.epoch == 1 and (next(one).inputs_WBT == next(other).inputs_WBT).all()


def test_what_cannot_be_learned_from_is_left_out_and_counted(tmp_path: Path) -> None:
    cut = ("w1", [text_of(0, 12)], "w7 w8")  # tokens 9 and 10 of 14: an edge of windows of ten stands between them
    long = ("w1 w2 w3", [text_of(0, 39)], "w3")
    split = prepared(tmp_path, ONE, cut, ("w1", [text_of(0, 5)], "w30"), long, ("w1", [text_of(0, 4)], "no"))
    stream = QuestionStream(split, layout_of(room=10), windows=2, batch=1, seed=0)
    assert stream.remarks == (
        "questions cut, with more than 2 tokens: 1.",
        "questions not trained on, whose answer stands in none of their paragraphs: 1.",
        "questions not trained on, whose answer is cut by the edge of a window (more overlap helps): 1.",
        "questions not trained on, with more than the 2 windows of a chain: 1.",
    )
    assert sum(next(stream).step_losses or 0 for _ in range(2)) == 2
    lapped = QuestionStream(split, layout_of(room=10, overlap=2), windows=2, batch=1, seed=0)
    assert not any("edge" in remark for remark in lapped.remarks)
    read = {int(table[0, QUESTION]) for _, table in question_batches(split, layout_of(room=10), 1, carry_state=True)}
    assert read == {0, 1, 2, 3, 4}  # all of them are asked


def test_an_answer_is_marked_in_windows_that_have_all_of_it(tmp_path: Path) -> None:
    split = prepared(tmp_path, ("w1", [text_of(0, 12)], "w7 w8"))
    for overlap, marked in ((0, 0), (2, 1), (8, 2)):
        layout = layout_of(room=10, overlap=overlap)
        targets = layout.gather(split, layout.cut(split, 0)[:, None]).targets_WBT[..., 1:]
        assert int((targets == STARTS).sum()) == int((targets == ENDS).sum()) == marked


def test_a_corpus_of_which_nothing_can_be_learned_is_refused(tmp_path: Path) -> None:
    split = prepared(tmp_path, ("w1", [text_of(0, 5)], "w30"))
    with pytest.raises(
        UserError, match=r"^corpus: none of its 1 training questions can be learned from: 1 have an answ"
    ):
        QuestionStream(split, layout_of(room=10), windows=2, batch=1, seed=0)


def test_questions_without_an_answer_are_counted_out(tmp_path: Path) -> None:
    asked = {"id": "q", "question": "w1", "answers": [{"text": "w3", "answer_start": 3}]}
    no_answer = {"id": "p", "question": "w1", "answers": [], "is_impossible": True}
    file = tmp_path / "s.json"
    file.write_text(json.dumps({"data": [{"paragraphs": [{"context": "w2 w3", "qas": [asked, no_answer]}]}]}))
    split = prepare_questions(f"squad:{file}", "train", TOKENIZER)
    assert split.names == ["q"] and split.text_between(*split.spans_of(0)[0]) == "w3"
    assert remarks_on(split, layout_of(room=9)) == ["questions left out, without an answer or without a text: 1."]
    with pytest.raises(UserError, match=r"the test split of squad:.* has no question with an answer and a text"):
        prepare_questions(f"squad:{file}", "test", TOKENIZER)


def test_a_sample_is_of_whole_questions_from_all_over(tmp_path: Path) -> None:
    split = many(tmp_path, count=8)
    each = split.token_count(0)
    assert split.sample(3 * each).chosen.tolist() == [0, 4, 7]
    assert len(split.sample(1).chosen) == 1 and len(split.sample(10**9).chosen) == len(split.chosen)


def test_a_tokenizer_without_marks_is_refused() -> None:
    with pytest.raises(UserError, match="tokenizer: it has no CLS token, which windows with a question need"):
        prepare_questions("facts", "train", load_tokenizer("bytes"))
