"""How trials are packed onto cards: never more than there is, and whoever fits an empty card gets a place."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from recur_tune.cluster.gpu_packing import CONTEXT, MARGIN, PARTS, Card, bytes_of_cards, takes_another
from tests.cluster.pretended import pretend_cards

GIB = 2**30
memories = st.integers(4 * GIB, 200 * GIB)


@pytest.mark.parametrize(
    ("predicted", "parts"),
    [
        (0.001, 1), (1, 1), (12, 1), (12.9, 2), (26, 2), (26.5, 3), (53, 4), (70, 6), (94, 7), (95, 8), (1000, 8),
    ],
)  # fmt: skip
def test_a_trial_takes_as_many_eighths_as_its_prediction_and_a_margin_need(predicted: float, parts: int) -> None:
    assert Card(136 * GIB).parts(predicted * GIB) == parts  # an eighth is 17 GiB, of which one is CUDA's


def test_a_trial_of_which_nobody_knows_the_memory_has_a_card_to_itself() -> None:
    assert Card(136 * GIB).parts(None) == PARTS
    assert Card(136 * GIB).tensors_share(PARTS) is None


@given(memory=memories, predicted=st.integers(1, 300 * GIB))
def test_what_a_trial_is_given_holds_it_and_no_eighth_more_than_that(memory: int, predicted: int) -> None:
    card, need = Card(memory), predicted * MARGIN + CONTEXT
    parts = card.parts(predicted)
    assert 1 <= parts <= PARTS
    assert parts * memory / PARTS >= need or parts == PARTS
    assert (parts - 1) * memory / PARTS < need


@given(memory=memories, predicted=st.lists(st.integers(1, 60 * GIB), min_size=1, max_size=PARTS))
def test_bounds_of_trials_that_fill_a_card_leave_each_its_context(memory: int, predicted: list[int]) -> None:
    card = Card(memory)
    parts = [card.parts(one) for one in predicted]
    bounds = [(card.tensors_share(one) or 0) * memory for one in parts if one < PARTS]
    assert all(bound > 0 for bound in bounds)
    if sum(parts) <= PARTS:
        assert sum(bounds) + CONTEXT * len(bounds) <= memory * (1 + 1e-9)


@dataclass
class Cards:
    """Ray, as far as it matters here: it gives whoever waits any cards that have room. Who takes more than the parts of
    a card has several workers, with a card each."""

    cards: int
    draw: st.DrawFn
    running: list[dict[int, int]] = field(default_factory=list)  # the parts of each by their card
    waiting: list[int] = field(default_factory=list)

    def left(self, card: int) -> int:
        return PARTS - sum(places.get(card, 0) for places in self.running)

    def places(self, parts: int) -> list[dict[int, int]]:
        """Where it may go."""
        if parts <= PARTS:
            return [{card: parts} for card in range(self.cards) if self.left(card) >= parts]
        empty = [card for card in range(self.cards) if self.left(card) == PARTS]
        return [dict.fromkeys(chosen, PARTS) for chosen in itertools.combinations(empty, parts // PARTS)]

    def start_all(self) -> None:
        while fitting := [(at, place) for at, parts in enumerate(self.waiting) for place in self.places(parts)]:
            at, place = self.draw(st.sampled_from(fitting))
            self.waiting.pop(at)
            self.running.append(place)

    def end_one(self) -> None:
        self.running.pop(self.draw(st.integers(0, len(self.running) - 1)))

    def takes_another(self) -> bool:
        return takes_another(self.cards, [sum(places.values()) for places in self.running], self.waiting)


@st.composite
def searches(draw: st.DrawFn) -> None:
    """A search on such cards, in any order of starts and ends; asserts on its way."""
    cluster, is_fast = Cards(draw(st.integers(1, 4)), draw), draw(st.booleans())
    several = [PARTS * workers for workers in range(2, cluster.cards + 1)]
    sizes = st.sampled_from([*range(1, PARTS + 1), *several])
    for parts in draw(st.lists(sizes, min_size=1, max_size=30)):
        while not cluster.takes_another():
            cluster.start_all()
            if cluster.waiting and not cluster.takes_another():
                assert cluster.running, "the cards are empty, and still one waits"
                cluster.end_one()
        cluster.waiting.append(parts)
        if is_fast or draw(st.booleans()):  # or more are asked for before these have started
            cluster.start_all()
        assert len(cluster.waiting) <= 1 or not is_fast, "nobody is asked for behind one that waits for a place"
        assert all(cluster.left(card) >= 0 for card in range(cluster.cards))


@given(searches())
def test_nobody_is_asked_for_while_one_waits_for_a_place_and_it_gets_one(_: None) -> None:
    """The search is its own test."""


@given(cards=st.integers(1, 5), sizes=st.integers(1, PARTS))
def test_alike_trials_are_asked_for_until_cards_are_full_and_one_waits(cards: int, sizes: int) -> None:
    fit = cards * (PARTS // sizes)
    assert all(takes_another(cards, [sizes] * count, []) for count in range(fit + 1))
    assert not takes_another(cards, [sizes] * fit, [sizes])


def test_the_line_says_how_many_share_a_card_and_why() -> None:
    said = Card(136 * GIB).why(8)
    assert "up to 8 trials share a card of 136 GiB." in said and "holds 12.8 GiB of predicted memory" in said
    assert "up to 3 trials share a card of 136 GiB, for want of cores" in Card(136 * GIB).why(3)


@pytest.mark.parametrize(
    ("said", "cards"),
    [
        ("143771, Disabled\n81559, Disabled\n", [143771 * 2**20, 81559 * 2**20]),
        ("24564, [N/A]\n", [24564 * 2**20]),  # a card that knows no slices
        ("143771, Disabled\n81559, Enabled\n", []),  # a slice has less than the tool says
        ("[N/A], [N/A]\n", []),  # memory that it shares with the processor
        ("No devices were found\n", []),
        ("", []),
    ],
)  # fmt: skip
def test_nvidias_tool_tells_the_memory_of_whole_cards(
    said: str, cards: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pretend_cards(tmp_path, said)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    assert bytes_of_cards() == cards


def test_where_there_is_no_such_tool_nothing_is_known(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert bytes_of_cards() == []
