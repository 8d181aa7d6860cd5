"""Exact match and F1: the official definition, by examples that can be checked by hand, and as properties."""

from __future__ import annotations

import string

import pytest
from hypothesis import given
from hypothesis import strategies as st

from recur_tune.data.corpora.hotpotqa import CLOSED
from recur_tune.tasks.question_answering.answer_scores import exact_match, f1, normalised

words = st.lists(st.sampled_from(["red", "green", "river", "1999", "yes", "no", "the", "an"]), max_size=6)
answers = words.map(" ".join)


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        ("The  Beatles", "beatles"),
        ("an apple, a pear", "apple pear"),
        ("U.S.", "us"),  # punctuation goes before words are told apart
        ("rock'n'roll", "rocknroll"),
        ("Another theory", "another theory"),  # articles go as whole words alone
        ("the", ""),
        ("A-ha", "aha"),
        ("1,234", "1234"),
        ("“quoted”", "“quoted”"),  # ASCII's punctuation alone
    ],
)
def test_an_answer_is_normalised_as_officially(answer: str, expected: str) -> None:
    assert normalised(answer) == expected


@pytest.mark.parametrize(
    ("given_answer", "right", "exact", "share"),
    [
        ("the Kansas Song", "Kansas Song", 1, 1.0),
        ("Song", "Kansas Song", 0, 2 / 3),  # precision 1, recall 1/2
        ("the old Kansas Song", "Kansas Song", 0, 0.8),  # precision 2/3, recall 1
        ("Kansas Kansas", "Kansas Song", 0, 0.5),  # a word counts as often as both have it
        ("Nebraska", "Kansas Song", 0, 0.0),
        ("", "Kansas Song", 0, 0.0),
        ("yes", "yes", 1, 1.0),
        ("Yes.", "yes", 1, 1.0),
        ("yes", "no", 0, 0.0),
        ("yes it is", "yes", 0, 0.0),  # HotpotQA: such an answer is right as a whole or not at all
        ("no", "no man", 0, 0.0),
        ("noanswer", "Kansas", 0, 0.0),
        ("yes it is", "yes he is", 0, 2 / 3),
    ],
)
def test_scores_of_single_answers(given_answer: str, right: str, exact: int, share: float) -> None:
    assert exact_match(given_answer, [right]) == exact
    assert f1(given_answer, [right], CLOSED) == pytest.approx(share)


def test_squad_knows_no_closed_answers_and_takes_the_nearest() -> None:
    assert f1("yes it is", ["yes"]) == pytest.approx(0.5)
    assert f1("in 1999", ["the year 1999", "1999 or so", "in 1999"]) == 1.0
    assert exact_match("1999", ["in 1999", "1999"]) == 1


@given(answers, answers)
def test_f1_is_symmetric_bounded_and_one_for_what_matches(one: str, other: str) -> None:
    share = f1(one, [other], CLOSED)
    assert share == f1(other, [one], CLOSED) and 0 <= share <= 1
    if normalised(one):
        assert (share == 1) == (
            sorted(normalised(one).split()) == sorted(normalised(other).split())
            and (normalised(one) == normalised(other) or not {normalised(one), normalised(other)} & CLOSED)
        )
    if share < 1 and normalised(one):
        assert not exact_match(one, [other])


@given(answers, st.sampled_from(string.punctuation))
def test_punctuation_case_and_articles_change_nothing(answer: str, mark: str) -> None:
    assert normalised(f"{mark}The {answer.upper()}{mark}") == normalised(answer)
