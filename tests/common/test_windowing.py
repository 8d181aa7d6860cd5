"""Which tokens a window reads and which it scores."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from recur_tune.common.windowing import BEGIN, END, SCORED_FROM, Windowing
from tests.data import windowings


def test_windows_of_10_with_overlap_3_are_those_of_the_paper() -> None:
    tokens = np.arange(26)  # the token at index i is called ti
    table = Windowing(10, overlap=3).cut(1, 25)

    inputs = [tokens[row[BEGIN] : row[END]].tolist() for row in table]
    scored = [tokens[row[SCORED_FROM] + 1 : row[END] + 1].tolist() for row in table]

    assert inputs == [list(range(1, 11)), list(range(8, 18)), list(range(15, 25))]
    assert scored == [list(range(2, 12)), list(range(12, 19)), list(range(19, 26))]


@settings(max_examples=100, deadline=None)
@given(windowing=windowings(), begin=st.integers(0, 1000), inputs=st.integers(0, 100))
def test_every_token_after_the_first_is_scored_exactly_once(windowing: Windowing, begin: int, inputs: int) -> None:
    end = begin + inputs
    targets = [
        target for row in windowing.cut(begin, end) for target in range(row[SCORED_FROM] + 1, row[END] + 1)
    ]  # fmt: skip
    assert targets == list(range(begin + 1, end + 1))


@settings(max_examples=100, deadline=None)
@given(windowing=windowings(), begin=st.integers(0, 1000), inputs=st.integers(1, 100))
def test_windows_have_the_size_and_the_overlap_asked_for(windowing: Windowing, begin: int, inputs: int) -> None:
    table = windowing.cut(begin, begin + inputs)
    lengths = table[:, END] - table[:, BEGIN]
    shared = table[:-1, END] - table[1:, BEGIN]

    assert table[0, BEGIN] == begin and table[-1, END] == begin + inputs
    assert (lengths[:-1] == windowing.size).all() and 1 <= lengths[-1] <= windowing.size
    assert (shared == windowing.overlap).all()
    assert (table[1:, BEGIN] - table[:-1, BEGIN] == windowing.stride).all()
    assert (table[:, SCORED_FROM] < table[:, END]).all(), "a window that scores nothing is wasted"


@settings(max_examples=100, deadline=None)
@given(windowing=windowings(), inputs=st.integers(-3, 100))
def test_count_is_the_number_of_windows_that_cut_makes(windowing: Windowing, inputs: int) -> None:
    assert windowing.count(inputs) == len(windowing.cut(7, 7 + inputs))


@settings(max_examples=100, deadline=None)
@given(windowing=windowings(), windows=st.integers(1, 20))
def test_span_is_what_a_chain_of_full_windows_covers(windowing: Windowing, windows: int) -> None:
    span = windowing.span(windows)
    table = windowing.cut(0, span)
    assert (table[:, END] - table[:, BEGIN]).tolist() == [windowing.size] * windows
    assert windowing.count(span + 1) == windows + 1


def test_a_document_shorter_than_a_window_is_one_short_window() -> None:
    assert Windowing(10, overlap=3).cut(5, 9).tolist() == [[5, 9, 5]]


def test_a_document_that_fills_a_window_exactly_is_one_window() -> None:
    assert Windowing(10, overlap=9).cut(0, 10).tolist() == [[0, 10, 0]]


def test_a_document_without_inputs_has_no_windows() -> None:
    assert Windowing(10, overlap=3).cut(5, 5).shape == (0, 3)


@pytest.mark.parametrize(("size", "overlap"), [(10, 10), (10, 11), (1, 1), (0, 0), (-1, 0), (10, -1)])
def test_a_window_cannot_overlap_by_all_of_itself_or_be_empty(size: int, overlap: int) -> None:
    with pytest.raises(ValueError, match=f"a window of {size} cannot overlap by {overlap}"):
        Windowing(size, overlap)
