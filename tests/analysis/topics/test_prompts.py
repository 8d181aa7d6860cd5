"""Prompts come from all documents alike, share no token, and are followed by what truly follows."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from recur_tune.analysis.topics.prompts import Prompts, shares, take_prompts
from recur_tune.common.errors import UserError
from recur_tune.data.tokenizers import byte_tokenizer
from tests.data import numbered_split


class Spelled:
    """Tokens written as numbers, so that a text tells where it is from."""

    def decode(self, tokens: list[int]) -> str:
        return " ".join(map(str, tokens))


def taken(lengths: list[int], count: int, length: int = 3, tokens: int = 2, seed: int = 0) -> Prompts:
    return take_prompts(numbered_split(lengths), Spelled(), count, length, tokens, seed, "the split")  # type: ignore[arg-type]


@given(st.lists(st.integers(0, 40), min_size=1, max_size=8), st.integers(1, 30), st.integers(0, 3))
def test_no_two_share_a_token_and_each_is_followed_by_its_truth(lengths: list[int], count: int, seed: int) -> None:
    room = sum(length // 5 for length in lengths)
    if not room:
        return
    found = taken(lengths, count, seed=seed)
    assert len(found.chosen) == min(count, room) and found.too_short == sum(length < 5 for length in lengths)
    spans = [[*prompt.tokens, *map(int, prompt.truth.split())] for prompt in found.chosen]
    for prompt, span in zip(found.chosen, spans, strict=True):
        begin = sum(lengths[: prompt.document])
        assert span == list(range(span[0], span[0] + 5)) and prompt.text == " ".join(map(str, prompt.tokens))
        assert begin < span[0] and span[-1] <= begin + lengths[prompt.document]
    everything = [token for span in spans for token in span]
    assert everything == sorted(set(everything))


@given(st.lists(st.integers(0, 9), max_size=9), st.integers(0, 60))
def test_shares_are_as_even_as_rooms_allow(rooms: list[int], count: int) -> None:
    given_out = shares(rooms, count)
    assert sum(given_out) == min(count, sum(rooms))
    most = max(given_out, default=0)
    assert all(
        share <= room and (share >= most - 1 or share == room) for share, room in zip(given_out, rooms, strict=True)
    )


def test_few_prompts_come_from_documents_far_apart() -> None:
    assert shares([4] * 10, 3) == [1, 0, 0, 0, 1, 0, 0, 0, 0, 1]


def test_the_seed_decides_where_in_its_part_a_prompt_begins() -> None:
    assert taken([90], 2, seed=1) == taken([90], 2, seed=1) != taken([90], 2, seed=2)


def test_what_is_longer_than_every_document_is_refused() -> None:
    with pytest.raises(
        UserError, match=r"prompt_tokens: 3 tokens and 2 that follow .* the split has; the longest has 4"
    ):
        taken([4, 3], 1)


def test_a_text_is_what_its_tokens_spell() -> None:
    split, tokenizer = numbered_split([200]), byte_tokenizer()
    (prompt,) = take_prompts(split, tokenizer, 1, 20, 10, 0, "the split").chosen
    assert prompt.text == tokenizer.decode(prompt.tokens)
