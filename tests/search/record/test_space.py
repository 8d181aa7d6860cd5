"""Spaces: what can be drawn from them, and what is nearest in them."""

from __future__ import annotations

import re
import warnings
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import optuna
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from recur_tune.config.trial import TrialConfig
from recur_tune.recurrences.pooled.spec import PAPER
from recur_tune.search.record.space import Choice, Fixed, Range, Space
from recur_tune.search.record.space_parsing import read_space
from tests.search.record import search

modest = settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    """Optuna says much; a warning of its own about one of our ranges is a fault of ours."""
    before = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        yield
    optuna.logging.set_verbosity(before)


def study(sampler: optuna.samplers.BaseSampler | None = None) -> optuna.Study:
    return optuna.create_study(sampler=sampler or optuna.samplers.RandomSampler(seed=0))


def whole_range(low: int, high: int) -> st.SearchStrategy[dict[str, Any]]:
    """A range of whole numbers, its step often one that misses the end."""
    ends = st.tuples(st.integers(low, high), st.integers(low, high)).filter(lambda two: two[0] != two[1]).map(sorted)
    plain = ends.map(lambda two: {"from": two[0], "to": two[1]})
    stepped = ends.flatmap(
        lambda two: st.integers(1, two[1] - two[0]).map(lambda step: {"from": two[0], "to": two[1], "step": step})
    )
    return st.one_of(plain, stepped, plain.map(lambda found: {**found, "log": True}) if low > 0 else stepped)


def whole(low: int, high: int) -> st.SearchStrategy[Any]:
    """A whole number in each of the ways that a space can have one."""
    number = st.integers(low, high)
    return st.one_of(number, st.lists(number, min_size=1, max_size=4, unique=True), whole_range(low, high))


shares = st.tuples(st.integers(0, 5), st.integers(6, 9), st.sampled_from([None, 0.05, 0.1, 0.2, 0.3])).map(
    lambda found: (
        {"from": found[0] / 10, "to": found[1] / 10, "of": "window"}
        | ({"step": found[2]} if found[2] and found[2] <= (found[1] - found[0]) / 10 else {})
    )
)
memory = st.fixed_dictionaries(
    {},
    optional={
        "l_ins": st.one_of(whole(1, 12), st.just([1, 2, "all"])),
        "width": whole(1, 500),
        "depth": whole(0, 4),
        "pooling": st.sampled_from(["mean", ["mean", "max"], {"max": None, "attention": None}]),
    },
)
spaces = st.fixed_dictionaries(
    {"window": whole(10, 400), "recurrence": st.one_of(
        st.sampled_from(["none", "pooled", ["none", "pooled"]]),
        memory.map(lambda below: {"none": None, "pooled": below}),
    )},
    optional={
        "overlap": st.one_of(shares, st.integers(0, 9), st.just([0, 5]), whole_range(0, 9)),
        "bptt_windows": whole(2, 30),
        "learning_rate": st.sampled_from([3e-4, [1e-4, 1e-3], {"from": "1e-5", "to": "1e-3", "log": True}]),
        "decay": st.sampled_from(["none", {"none": None, "cosine": {"warmup_steps": [0, 10], "clip_norm": 2.0}}]),
        "dropout": st.sampled_from([None, [None, 0.1], {"from": 0, "to": 0.3}, {"from": 0, "to": 0.3, "step": 0.1}]),
    },
)  # fmt: skip


def existing(given: Mapping[str, Any], drawn: Mapping[str, Any]) -> set[str]:
    """The fields that the space decides given what was drawn, straight from how the space is written."""
    names = set()
    for name, value in given.items():
        if isinstance(value, dict) and "from" not in value:
            below = value[drawn[name]] or {}
            names |= {name} | below.keys() | existing(below, drawn)
        elif isinstance(value, dict | list):
            names.add(name)
    return names


@modest
@given(spaces, st.integers(0, 1000), st.booleans())
def test_every_draw_is_a_trial_with_the_parameters_of_its_branches(given: dict[str, Any], seed: int, tpe: bool) -> None:
    spec = search(space=given)
    sampler = optuna.samplers.TPESampler(n_startup_trials=2, seed=seed) if tpe else optuna.samplers.RandomSampler(seed)
    ongoing = study(sampler)
    for value in range(5):
        trial = ongoing.ask()
        drawn = spec.parsed_space.draw(trial)
        config = spec.trial_config(drawn)
        assert 0 <= config.overlap < config.window
        assert drawn.keys() == existing(given, drawn) <= set(spec.parsed_space.names)
        assert {name: getattr(config, name) for name in drawn} == drawn
        for name, fixed in given.items():
            assert isinstance(fixed, dict | list) or getattr(config, name) == fixed
        ongoing.tell(trial, value)


@modest
@given(spaces, st.integers(0, 1000))
def test_a_sampled_point_is_drawn_as_the_same_trial(given: dict[str, Any], seed: int) -> None:
    found, rng = read_space(given), np.random.default_rng(seed)
    for kept in (None, found.sample(rng)[0]):
        point, fields = found.sample(rng, kept)
        ongoing = study()
        ongoing.enqueue_trial(point)
        trial = ongoing.ask()
        assert found.draw(trial) == fields
        assert trial.params == point, "none is left to the sampler, and none is a stranger to it"
        assert kept is None or kept == point


def test_samples_follow_the_scale_of_their_range() -> None:
    rng = np.random.default_rng(0)
    whole = Counter(Range(1, 4, log=True).random(rng) for _ in range(4000))
    assert sorted(whole) == [1, 2, 3, 4] and whole[1] > 2.5 * whole[4]
    low = sum(Range(1e-4, 1e-2, log=True).random(rng) < 1e-3 for _ in range(4000))
    assert 1850 < low < 2150
    steps = Counter(round(Range(0.0, 0.3, step=0.1).random(rng), 9) for _ in range(4000))
    assert sorted(steps) == [0.0, 0.1, 0.2, 0.3] and min(steps.values()) > 850


@modest
@given(spaces, st.fixed_dictionaries({
    "recurrence": st.sampled_from(["none", "pooled"]), "window": st.integers(1, 600), "overlap": st.integers(0, 600),
    "l_ins": st.one_of(st.integers(1, 20), st.just("all")), "width": st.integers(1, 900), "depth": st.integers(0, 9),
    "pooling": st.sampled_from(["mean", "max", "attention"]), "bptt_windows": st.integers(2, 60),
    "learning_rate": st.floats(1e-6, 1), "decay": st.sampled_from(["none", "cosine"]), "dropout": st.floats(0, 0.9),
    "warmup_steps": st.integers(0, 20), "clip_norm": st.floats(0.1, 4), "batch": st.just(8),
}))  # fmt: skip
def test_the_closest_point_lies_in_the_space(given: dict[str, Any], wanted: dict[str, Any]) -> None:
    spec = search(space=given)
    point = spec.parsed_space.closest(wanted)
    ongoing = study()
    ongoing.enqueue_trial(point)
    trial = ongoing.ask()
    spec.trial_config(spec.parsed_space.draw(trial))
    assert trial.params == point


@modest
@given(spaces, st.integers(0, 1000))
def test_a_trial_by_its_fields_is_that_trial(given: dict[str, Any], seed: int) -> None:
    found = search(space=given).parsed_space
    trial = study(optuna.samplers.RandomSampler(seed)).ask()
    fields = found.draw(trial)
    assert found.fields_of(trial.params) == fields
    again = found.draw(optuna.trial.FixedTrial(found.point({**found.fixed, **fields})))
    assert again == pytest.approx(fields)


def space(**given: Any) -> Space:
    return read_space(given)


_SMALL = space(
    recurrence={"none": None, "pooled": {"l_ins": [1, 2], "width": {"from": 50, "to": 400}}}, depth=3,
    window={300: {"batch": 4}, 100: {"batch": 12}}, overlap={"from": 0, "to": 0.5, "step": 0.1, "of": "window"},
    learning_rate={"from": 1e-5, "to": 1e-3, "log": True},
)  # fmt: skip


def test_what_a_given_trial_does_not_say_is_left_to_the_sampler() -> None:
    assert _SMALL.point({}) == {}
    assert _SMALL.point({"recurrence": "pooled", "width": "64", "depth": 3}) == {"recurrence": "pooled", "width": 64}
    assert _SMALL.point({"window": 300, "batch": 4, "overlap": 30, "learning_rate": "1e-4"}) == {
        "window": 300, "overlap_of_window": pytest.approx(0.1), "learning_rate": 1e-4,
    }  # fmt: skip


def test_a_share_that_is_rounded_down_to_a_given_number_is_found() -> None:
    found = space(window=14, overlap={"from": 0, "to": 0.5, "step": 0.1, "of": "window"})
    assert found.point({"overlap": 2}) == {"overlap_of_window": pytest.approx(0.2)}, "0.2 of 14 are 2.8"


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"windw": 3}, "first: the space has no 'windw'; did you mean 'window'?"),
        ({"dropout": 0.1}, "first: the space has no 'dropout'; "),
        ({"window": 120}, "first: window 120 is not in the space; the nearest is 100."),
        ({"window": "wide"}, "first: window: 'wide' is not a valid integer"),
        ({"depth": 2}, "first: depth 2 is not in the space; the nearest is 3."),
        ({"window": 100, "batch": 4}, "first: batch 4 is not in the space; the nearest is 12."),
        ({"learning_rate": 1.0}, "first: learning_rate 1.0 is not in the space; the nearest is 0.001."),
        ({"overlap": 30}, "first: overlap 30 is a share of the window; say which."),
        ({"overlap": 35, "window": 300}, "first: overlap 35 is not in the space; the nearest is 30."),
        ({"l_ins": 2}, "first: l_ins 2 exists only with a choice above it; say which."),
        ({"l_ins": 2, "recurrence": "none"}, "first: l_ins 2 exists only with a choice above it; say which."),
    ],
)  # fmt: skip
def test_a_given_trial_that_is_not_in_the_space_is_refused_in_one_sentence(
    given: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(ValueError, match=re.escape(sentence)):
        _SMALL.point(given)


def test_a_point_of_the_space_is_its_own_closest() -> None:
    found = space(
        recurrence={"none": None, "pooled": {"l_ins": [1, 2, 4], "width": {"from": 50, "to": 400, "step": 50}}},
        window=[200, 300], overlap={"from": 0, "to": 0.5, "step": 0.1, "of": "window"}, batch=[4, 8],
    )  # fmt: skip
    paper = {"recurrence": "pooled", "l_ins": 2, "width": 200, "window": 300, "overlap_of_window": 0}
    assert found.closest({**PAPER, "recurrence": "pooled"}) == paper, "the batch is left to the sampler"
    assert found.closest({**PAPER, "recurrence": "none"}) == {
        "recurrence": "none", "window": 300, "overlap_of_window": 0,
    }  # fmt: skip
    assert found.closest({**PAPER, "recurrence": "pooled", "overlap": 100, "width": 226, "l_ins": 9}) == {
        **paper, "overlap_of_window": pytest.approx(0.3), "width": 250, "l_ins": 4,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("parameter", "wanted", "closest"),
    [
        (Choice(("a", "b"), {}), "b", "b"), (Choice(("a", "b"), {}), "c", "a"), (Choice(("a", "b"), {}), 3, "a"),
        (Choice((1, 5, "all"), {}), 4, 5), (Choice((1, 5, "all"), {}), "all", "all"), (Choice((1, 5), {}), "all", 1),
        (Choice((None, 0.1), {}), 0.3, 0.1), (Choice((None, 0.1), {}), None, None),
        (Range(1, 9), 20, 9), (Range(1, 9), -3, 1), (Range(1, 9), 4.4, 4), (Range(1, 9), "all", 1),
        (Range(1.0, 9.0), 4.4, 4.4), (Range(10, 19, step=3), 300, 19), (Range(10, 19, step=3), 14, 13),
    ],
)  # fmt: skip
def test_closest_to_each_kind_of_parameter(parameter: Choice | Range, wanted: Any, closest: Any) -> None:
    assert parameter.closest(wanted) == closest


def test_a_share_that_names_no_whole_is_one_of_the_fixed_or_the_default() -> None:
    overlap = {"from": 0.0, "to": 0.5, "of": "window"}
    assert space(window=100, overlap=overlap).closest({"overlap": 25}) == {"overlap_of_window": 0.25}
    conditional = space(overlap=overlap, recurrence={"none": None, "pooled": {"window": [100, 200]}})
    assert {fields.get("window", 300) // 2 for fields in conditional.corners()} == {
        fields["overlap"] for fields in conditional.corners() if fields["overlap"]
    }


@pytest.mark.parametrize(
    ("share", "window", "overlap"),
    [(0.3, 10, 3), (0.29, 100, 29), (0.1 + 0.2, 10, 3), (0.57, 100, 57), (0.5, 25, 12), (0, 7, 0), (0.999, 10, 9)],
)
def test_a_share_is_rounded_down_but_not_by_a_floats_error(share: float, window: int, overlap: int) -> None:
    found = space(window=window, overlap={"from": 0, "to": 0.999, "of": "window"})
    fixed = optuna.trial.FixedTrial({"overlap_of_window": share})
    assert found.draw(fixed) == {"overlap": overlap}


def test_corners_are_every_combination_of_ends_once() -> None:
    found = space(
        base="tiny", window=[200, 400, 300], batch={"from": 2, "to": 9, "step": 3},
        recurrence={"none": None, "pooled": {"l_ins": [1, 2, "all"], "depth": 2}},
    )  # fmt: skip
    corners = list(found.corners())
    ends = [{"window": window, "batch": batch} for window in (200, 400) for batch in (2, 8)]
    plain = [{**end, "recurrence": "none"} for end in ends]
    recurrent = [{**end, "recurrence": "pooled", "l_ins": at, "depth": 2} for end in ends for at in (1, 2, "all")]
    assert sorted(map(repr, map(sorted, map(dict.items, corners)))) == sorted(
        repr(sorted(expected.items())) for expected in plain + recurrent
    )
    assert list(space(base="tiny").corners()) == [{}]


def test_values_have_the_types_of_fields_and_fixed_ones_their_branch() -> None:
    found = space(l_ins=["1", "all"], learning_rate="1e-4", recurrence={"pooled": {"bptt_windows": "3"}}, seed=7)
    assert found.fixed == {"learning_rate": 1e-4, "seed": 7}
    assert found.parameters["l_ins"] == Choice((1, "all"), {})
    assert found.parameters["recurrence"] == Choice(("pooled",), {"pooled": {"bptt_windows": Fixed(3)}})
    assert found.names == ["l_ins", "recurrence", "bptt_windows"]
    assert found.trial_config({"l_ins": 1, "bptt_windows": 3}) == TrialConfig(
        learning_rate=1e-4, seed=7, l_ins=1, bptt_windows=3
    )


@pytest.mark.parametrize(
    ("ends", "last"),
    [((10, 20, 3), 19), ((10, 20, 5), 20), ((0.0, 0.7, 0.2), 0.6), ((0.0, 0.3, 0.1), 0.3), ((0.4, 0.6, 0.2), 0.6)],
)
def test_a_range_ends_where_its_steps_do(ends: tuple[float, float, float], last: float) -> None:
    given = {"from": ends[0], "to": ends[1], "step": ends[2]}
    name = "window" if isinstance(last, int) else "dropout"
    assert space(**{name: given}).parameters[name].extremes() == (ends[0], last)


def test_a_parameter_may_stand_in_two_branches_with_the_same_values() -> None:
    found = space(recurrence={"none": {"batch": [4, 8]}, "pooled": {"batch": [4, 8]}})
    assert found.names == ["recurrence", "batch"]
    assert len(list(found.corners())) == 4


def test_a_branch_may_bring_a_fixed_value_that_the_sampler_never_sees() -> None:
    found = space(recurrence={"none": {"batch": 4}, "pooled": {"batch": 8}})
    assert list(found.corners()) == [{"recurrence": "none", "batch": 4}, {"recurrence": "pooled", "batch": 8}]
    assert found.closest({"recurrence": "pooled", "batch": 4}) == {"recurrence": "pooled"}
    trial = optuna.trial.FixedTrial({"recurrence": "pooled"})
    assert found.draw(trial) == {"recurrence": "pooled", "batch": 8}
    assert trial.params == {"recurrence": "pooled"}


def test_a_points_fields_have_the_fixed_values_of_its_branches_and_none_below_a_choice_that_it_leaves_open() -> None:
    found = space(window={300: {"recurrence": {"none": {"batch": 4}, "pooled": {"depth": 2}}}, 100: {"batch": 12}})
    assert found.fields_of({"window": 300, "recurrence": "none"}) == {"window": 300, "recurrence": "none", "batch": 4}
    assert found.fields_of({"window": 100}) == {"window": 100, "batch": 12}
    assert found.fields_of({"window": 300}) == {"window": 300}
    assert found.fields_of({}) == {}


def test_of_a_huge_space_only_so_many_corners_are_looked_at() -> None:
    fields = ["width", "depth", "embeddings", "window", "bptt_windows", "batch", "warmup_steps", "patience", "seed"]
    wide = {name: {"from": 50, "to": 100} for name in fields} | {"corpus": [str(number) for number in range(99)]}
    corners = list(space(**wide).corners())
    assert len(corners) == 20_000
    for name in fields:
        assert {corner[name] for corner in corners} == {50, 100}, "values take turns"


def test_branches_have_no_corners_in_common() -> None:
    of_pooled, of_blocks = (
        ("width", "depth", "embeddings", "l_ins"),
        ("state_vectors", "block_layer", "recurrence_rate"),
    )
    of_all = ("window", "bptt_windows", "batch", "warmup_steps", "patience", "seed", "validation_tokens", "clip_norm")
    ends = {name: [2, 9] for name in (*of_pooled, *of_blocks, *of_all)}
    below = {"pooled": {name: ends[name] for name in of_pooled}, "blocks": {name: ends[name] for name in of_blocks}}
    corners = list(space(recurrence={"none": None, **below}, **{name: ends[name] for name in of_all}).corners())
    kinds = Counter(fields["recurrence"] for fields in corners)
    assert kinds == {"none": 2**8, "pooled": 2**12, "blocks": 2**11}


def test_bits_of_a_frozen_base_stand_below_what_learns() -> None:
    bits = [16, 8, 4]
    learns = {"all": None, "lora": {"lora_rank": [4, 16], "base_bits": bits}, "recurrence": {"base_bits": bits}}
    wide = space(recurrence={"cache": {"cache_rows": [16, 32], "trainable": learns}})
    trials = [wide.trial_config(fields) for fields in wide.corners()]
    assert {(one.trainable, one.base_bits) for one in trials} == {
        ("all", 16), ("lora", 16), ("lora", 4), ("recurrence", 16), ("recurrence", 4),
    }  # fmt: skip
