"""What a search accepts, refuses and means."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from recur_tune.common.errors import UserError
from recur_tune.common.parsing import parse
from recur_tune.config.trial import TrialConfig
from recur_tune.search.record.directory import dump_spec
from recur_tune.search.record.spec import Budget, SearchSpec, changes_between, located, with_overrides
from tests.search.record import search

RICH: dict[str, Any] = {
    "space": {
        "base": "tiny", "tokenizer": None, "batch": 4, "dropout": [None, 0.1],
        "recurrence": {"none": None, "pooled": {"l_ins": [1, 2, "all"], "width": {"from": 50, "to": 400, "step": 50}}},
        "decay": {"none": {}, "cosine": {"warmup_steps": [0, 100]}},
        "window": {"from": 100, "to": 300, "step": 100},
        "overlap": {"from": 0, "to": 0.5, "step": 0.1, "of": "window"},
        "learning_rate": {"from": "1e-5", "to": 1e-3, "log": True},
    },
    "objectives": ["bits_per_byte", "peak_memory", "parameters"],
    "limits": {"peak_memory": "40GiB", "training_flops_per_token": "200M"},
    "reference": {"bits_per_byte": 2.5},
    "first": [{"recurrence": "pooled", "l_ins": "all", "learning_rate": "1e-4"}, {"window": 200, "overlap": 20}],
    "budget": {"tokens": "1.5M", "trials": 50, "wall_clock": "1h30m", "rungs": 4, "reduction": 1.5},
    "resources": {"workers": 2, "cpus": 0.5, "gpus": 0.25},
    "sampler": {"name": "nsga3", "seed": 7},
    "keep": "all",
    "tracking": "http://127.0.0.1:5000",
}  # fmt: skip


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ({"spaces": {}}, "spaces: there is no such field; did you mean 'space'?"),
        ({"budget": {"trials": 1, "tokns": 5}}, "budget.tokns: there is no such field; did you mean 'tokens'?"),
        ({"resources": {"gpu": 1}}, "resources.gpu: there is no such field; did you mean 'gpus'?"),
        ({"sampler": {"sead": 1}}, "sampler.sead: there is no such field; did you mean 'seed'?"),
        ({"sampler": {"x": 1}}, "sampler.x: there is no such field; known: name, seed."),
        ({"space": {"windw": 1}}, "space.windw: there is no such field; did you mean 'window'?"),
        ({"space": ["window"]}, "space: ['window'] is not a valid dictionary."),
        ({"space": {"tokens": 5}}, "space.tokens: it belongs to the budget; set budget.tokens and budget.rungs."),
        ({"space": {"validate_every": 5}},
         "space.validate_every: it belongs to the budget; set budget.tokens and budget.rungs."),
        ({"budget": {}}, "budget: it has no end; give trials, wall_clock or both."),
        ({"budget": {"trials": 0}}, "budget.trials: 0 is not greater than 0."),
        ({"budget": {"wall_clock": "soon"}}, "budget.wall_clock: 'soon' is not a duration such as 90s, 30m or 8h."),
        ({"budget": {"wall_clock": 0}}, "budget.wall_clock: 0.0 is not greater than 0."),
        ({"budget": {"trials": 1, "tokens": "x"}}, "budget.tokens: 'x' is not a count such as 500k or 20M."),
        ({"budget": {"trials": 1, "tokens": 7, "rungs": 4}},
         "budget: 4 rungs leave less than a token for the first; give fewer."),
        ({"budget": {"trials": 1, "rungs": 5000}}, "budget.rungs: 5000 is not less than or equal to 100."),
        ({"budget": {"trials": 1, "reduction": 1}}, "budget.reduction: 1 is not greater than 1."),
        ({"objectives": ["perplexity", "flop_per_token"]},
         "objectives: there is no 'flop_per_token'; did you mean 'flops_per_token'?"),
        ({"objectives": ["perplexity", "perplexity"]}, "objectives: one stands twice in perplexity, perplexity."),
        ({"objectives": ["perplexity"]},
         "objectives: 'perplexity' alone has no front; add a cost such as flops_per_token."),
        ({"objectives": ["parameters", "peak_memory"]},
         "objectives: costs alone need no search; add a quality such as perplexity."),
        ({"objectives": []}, "objectives: costs alone need no search; add a quality such as perplexity."),
        ({"limits": {"perplexity": 30}},
         "limits: 'perplexity' is no cost that is known before a trial runs; known: flops_per_token, "
         "training_flops_per_token, peak_memory, inference_memory, parameters."),
        ({"limits": {"peak_memry": 30}},
         "limits: 'peak_memry' is no cost that is known before a trial runs; did you mean 'peak_memory'?"),
        ({"limits": {"peak_memory": -1}}, "limits.peak_memory: -1 leaves nothing; give a positive number."),
        ({"limits": {"peak_memory": 0}}, "limits.peak_memory: 0 leaves nothing; give a positive number."),
        ({"limits": {"peak_memory": "40 houses"}},
         "limits: has peak_memory: '40 houses', which is not a size such as 16GiB or 800MB."),
        ({"limits": {"peak_memory": None}},
         "limits: has peak_memory: None, which is not a size such as 16GiB or 800MB."),
        ({"limits": {"parameters": "1.2.3"}},
         "limits: has parameters: '1.2.3', which is not a count such as 500k or 20M."),
        ({"limits": {"parameters": "16GiB"}},
         "limits: has parameters: '16GiB', which is not a count such as 500k or 20M."),
        ({"limits": ["peak_memory"]}, "limits: ['peak_memory'] is not a list of `objective: value`."),
        ({"first": 300}, "first: 300 is not a list of trials, each as {window: 300, overlap: 0}."),
        ({"first": ["window"]}, "first: ['window'] is not a list of trials, each as {window: 300, overlap: 0}."),
        ({"first": [{"window": 250}]}, "first: window 250 is not in the space; the nearest is 200."),
        ({"first": [{"window": 200}, {"windw": 200}]}, "first: the space has no 'windw'; did you mean 'window'?"),
        ({"reference": {"loss": 3}}, "reference: 'loss' is none of the search's objectives."),
        ({"reference": {"perplexity": 0}}, "reference.perplexity: 0 spans no volume; give a positive number."),
        ({"resources": {"gpus": 1.5}},
         "resources: gpus 1.5 is not possible; above one it has to be a whole number."),
        ({"resources": {"workers": 0}}, "resources.workers: 0 is not greater than 0."),
        ({"resources": {"gpus": -1}}, "resources.gpus: -1 is not greater than or equal to 0."),
        ({"sampler": {"name": "cmaes"}},
         "sampler.name: 'cmaes' is not 'known-costs', 'tpe', 'nsga2', 'nsga3', 'gp' or 'random'."),
        ({"objectives": ["perplexity", "loss", "flops_per_token"], "sampler": {"name": "known-costs"}},
         "sampler.name: known-costs models one quality, and objectives has perplexity, loss; "
         "leave out one or choose tpe."),
        ({"sampler": {"name": "nsga2"}, "objectives": ["loss", "flops_per_token", "peak_memory", "parameters"]},
         "sampler.name: nsga2 works poorly above three objectives; choose nsga3 or tpe."),
        ({"budget": {"trials": 9, "plateau": 0.01}, "sampler": {"name": "random"}},
         "budget.plateau: 0.01 needs to know what a trial is expected to add, and sampler random does not; "
         "choose known-costs."),
        ({"budget": {"trials": 9, "plateau": 2}}, "budget.plateau: 2 is not less than 1."),
        ({"keep": "some"}, "keep: 'some' is not 'front', 'all' or 'none'."),
    ],
)  # fmt: skip
def test_what_is_wrong_is_said_in_one_sentence(fields: dict[str, Any], sentence: str) -> None:
    with pytest.raises(UserError) as refusal:
        search(**fields)
    assert str(refusal.value) == sentence


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ({"space": {}}, "budget: it is missing and has no default."),
        ({"budget": {"trials": 1}}, "space: it is missing and has no default."),
    ],
)
def test_what_is_missing_is_named(fields: dict[str, Any], sentence: str) -> None:
    with pytest.raises(UserError) as refusal:
        parse(SearchSpec, fields)
    assert str(refusal.value) == sentence


def test_bounds_are_read_in_their_units() -> None:
    spec = search(
        limits={"peak_memory": "40GiB", "flops_per_token": "200M", "parameters": 1.5e8},
        reference={"perplexity": "25.5", "peak_memory": "1GB", "flops_per_token": "2_000k"},
    )
    assert spec.limits == {"peak_memory": 40 * 2**30, "flops_per_token": 2e8, "parameters": 1.5e8}
    assert spec.reference == {"perplexity": 25.5, "peak_memory": 1e9, "flops_per_token": 2e6}


@pytest.mark.parametrize(
    ("fields", "tokens"),
    [
        ({}, [5_000_000, 10_000_000, 20_000_000]),
        ({"tokens": "9k", "reduction": 3}, [1000, 3000, 9000]),
        ({"tokens": 100, "rungs": 1}, [100]),
        ({"tokens": 8, "rungs": 4}, [1, 2, 4, 8]),
        ({"tokens": 1000, "reduction": 1.5}, [444, 666, 1000]),
    ],
)
def test_rungs_grow_by_the_reduction_up_to_the_budget(fields: dict[str, Any], tokens: list[int]) -> None:
    assert Budget(trials=1, **fields).rung_tokens == tokens


def test_a_trial_gets_the_fixed_fields_the_budget_and_its_parameters() -> None:
    spec = search(space={"base": "tiny", "window": [200, 300]}, budget={"trials": 1, "tokens": "4k"})
    expected = TrialConfig(base="tiny", window=200, tokens=4000, validate_every=1000)
    assert spec.trial_config({"window": 200}) == expected


def test_a_search_finds_its_files_from_any_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("base", "books", "bpe"):
        (tmp_path / name).mkdir()
    (tmp_path / "mini").touch()
    (tmp_path / "smol.gguf").touch()
    monkeypatch.chdir(tmp_path)
    bases = ["base", "gpt2", "mini", "smol.gguf"]
    spec = search(space={"base": bases, "corpus": "text:books", "tokenizer": {"bpe": None}})
    base, corpus, tokenizer = (spec.space[field] for field in ("base", "corpus", "tokenizer"))
    assert base == [str(tmp_path / "base"), "gpt2", "mini", str(tmp_path / "smol.gguf")], "no other file is a base"
    assert corpus == f"text:{tmp_path / 'books'}"
    assert tokenizer == {str(tmp_path / "bpe"): None}
    monkeypatch.chdir("/")
    for value in ("recall:lag=2", "stdlib", corpus, "text:", "text:nowhere", "text:~nobody/books"):
        assert located("corpus", value) == value


def test_overrides_reach_into_sections_and_leave_their_input_alone() -> None:
    fields = {"space": {"recurrence": {"none": None}, "window": [1, 2], "width": {8: {"batch": 2}}}}
    fields |= {"budget": {"trials": 3}, "limits": None}
    before = copy.deepcopy(fields)
    overrides = [
        ("budget.tokens", "5M"), ("budget.trials", 9), ("sampler.seed", 1), ("limits.peak_memory", "1GiB"),
        ("space.window", 64), ("space.recurrence.pooled.l_ins", [1]), ("space.batch.from", 4), ("keep", "all"),
        ("keep", "none"), ("space.width.8.batch", 3),
    ]  # fmt: skip
    assert with_overrides(fields, overrides) == {
        "space": {
            "recurrence": {"none": None, "pooled": {"l_ins": [1]}},
            "window": 64,
            "width": {8: {"batch": 3}},
            "batch": {"from": 4},
        },
        "budget": {"trials": 9, "tokens": "5M"},
        "limits": {"peak_memory": "1GiB"},
        "sampler": {"seed": 1},
        "keep": "none",
    }
    assert fields == before


@pytest.mark.parametrize(
    "override",
    [
        ("budget.trials", 51), ("budget.trials", None), ("budget.wall_clock", "2h"), ("budget.wall_clock", 5400),
        ("tracking", None), ("keep", "none"), ("resources.workers", 1), ("resources.gpus", "auto"),
        ("budget.tokens", 1_500_000), ("limits.peak_memory", 40 * 2**30),
    ],
)  # fmt: skip
def test_a_search_may_go_on_elsewhere_longer_and_spelled_otherwise(override: tuple[str, Any]) -> None:
    changed = parse(SearchSpec, with_overrides(RICH, [override]))
    assert list(changes_between(parse(SearchSpec, RICH), changed)) == []


@pytest.mark.parametrize(
    ("override", "change"),
    [
        (("budget.tokens", "2M"), ("budget.tokens", 1_500_000, 2_000_000)),
        (("budget.rungs", 3), ("budget.rungs", 4, 3)),
        (("budget.reduction", 2), ("budget.reduction", 1.5, 2)),
        (("sampler.seed", 8), ("sampler.seed", 7, 8)),
        (("sampler.name", "tpe"), ("sampler.name", "nsga3", "tpe")),
        (("objectives", ["loss", "parameters"]),
         ("objectives", ["bits_per_byte", "peak_memory", "parameters"], ["loss", "parameters"])),
        (("limits.parameters", "1M"), ("limits.parameters", None, 1e6)),
        (("reference.bits_per_byte", 3), ("reference.bits_per_byte", 2.5, 3)),
        (("space.batch", 8), ("space.batch", 4, 8)),
        (("space.seed", [1, 2]), ("space.seed", None, [1, 2])),
        (("space.decay", {"none": {}}), ("space.decay", RICH["space"]["decay"], {"none": {}})),
        (("space.recurrence", {"pooled": RICH["space"]["recurrence"]["pooled"]}),
         ("space.recurrence", RICH["space"]["recurrence"], {"pooled": RICH["space"]["recurrence"]["pooled"]})),
    ],
)  # fmt: skip
def test_what_numbers_depend_on_may_not_change(override: tuple[str, Any], change: tuple[str, Any, Any]) -> None:
    changed = with_overrides({**RICH, "reference": {}} if override[0] == "objectives" else RICH, [override])
    differences = list(changes_between(parse(SearchSpec, RICH), parse(SearchSpec, changed)))
    assert differences[0] == change
    assert len(differences) == 1 or override[0] == "objectives"  # whose reference cannot stay


def test_a_rich_search_survives_its_yaml_file() -> None:
    spec = parse(SearchSpec, RICH)
    again = parse(SearchSpec, yaml.safe_load(dump_spec(spec)))
    assert again == spec
    assert again.parsed_space == spec.parsed_space
    assert list(again.parsed_space.parameters["recurrence"].values) == ["none", "pooled"]


words = st.sampled_from(["yes", "no", "on", "off", "null", "~", "1e3", "0x1", "1:30", "true", " a ", "#", "é", "gpt2"])


@settings(max_examples=60, deadline=None)
@given(
    base=st.lists(words, min_size=1, max_size=4, unique=True),
    rate=st.floats(1e-12, 10),
    wall_clock=st.integers(1, 10**7),
    limit=st.floats(1e-3, 1e18),
    tracking=st.none() | words,
    reduction=st.floats(1.01, 100),
)
def test_every_search_survives_its_yaml_file(
    base: list[str], rate: float, wall_clock: int, limit: float, tracking: str | None, reduction: float
) -> None:
    spec = search(
        space={"base": {name: {"learning_rate": [rate]} for name in base}, "corpus": base[0]},
        budget={"wall_clock": wall_clock, "rungs": 2, "reduction": reduction},
        limits={"flops_per_token": limit},
        tracking=tracking,
    )
    assert parse(SearchSpec, yaml.safe_load(dump_spec(spec))) == spec
