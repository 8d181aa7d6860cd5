"""The registry of recurrences: names, fields, marks, and what closed forms say."""

from __future__ import annotations

import dataclasses
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel, Field, PositiveInt

from recur_tune.bptt.plan import Plan
from recur_tune.common.errors import UserError
from recur_tune.common.known_shapes import KNOWN_SHAPES
from recur_tune.common.parsing import parse, read_yaml, write_yaml
from recur_tune.common.shape import Shape, shape_of
from recur_tune.common.windowing import Windowing
from recur_tune.config.fields import own_fields, own_values
from recur_tune.config.trial import COMMON, FROZEN_FIELDS, LORA_FIELDS, TrialConfig
from recur_tune.cost.counted_flops import counted
from recur_tune.cost.flops import flops_per_token, training_flops_per_token
from recur_tune.cost.inference_memory import inference_memory
from recur_tune.models.pretrained import base_config
from recur_tune.recurrences import registry as recurrences
from recur_tune.recurrences.composition import built
from recur_tune.recurrences.modules import modules_of
from recur_tune.recurrences.pooled.spec import POOLED, PooledSpec
from recur_tune.recurrences.registry import FIELDS, MARKS, MECHANISMS, canonical
from recur_tune.recurrences.seam import Recurrence
from recur_tune.search.propose.optuna_study import first_points
from recur_tune.search.record.directory import SearchDirectory
from recur_tune.search.record.space_parsing import read_space
from recur_tune.search.record.spec import SearchSpec
from recur_tune.search.record.state import in_current_terms
from recur_tune.tasks import registry as tasks
from tests.conftest import small_config

GPT2 = shape_of(base_config("gpt2").to_dict())
LLAMA = shape_of(KNOWN_SHAPES["meta-llama/Llama-3.2-1B"])  # 16 layers of 2048, 32 heads of 64 over 8 of keys and values


@pytest.mark.parametrize("mechanism", MECHANISMS.values(), ids=lambda one: one.name)
def test_every_mechanism_says_what_the_others_rely_on(mechanism: recurrences.Mechanism) -> None:
    spec = mechanism.spec()
    assert mechanism.summary and mechanism.spec.model_config["frozen"]
    assert mechanism.flops_independent_fields | mechanism.state_independent_fields <= mechanism.spec.model_fields.keys()
    for fields in mechanism.first.values():
        assert TrialConfig(**fields, recurrence=mechanism.name).recurrence == mechanism.name
    assert mechanism.check(spec, GPT2, "gpt2") is None
    assert mechanism.load().__name__ == mechanism.module.partition(":")[2]


class ToySpec(BaseModel):
    rows: int = 3
    speed: float = 0.5


class TakesRows(Recurrence):
    def __init__(self, shape: Shape, rows: int) -> None:
        super().__init__(shape)
        self.taken = {"rows": rows}


class TakesAll(Recurrence):
    def __init__(self, shape: Shape, **fields: Any) -> None:
        super().__init__(shape)
        self.taken = fields


def test_a_module_takes_every_field_of_its_spec(monkeypatch: pytest.MonkeyPatch) -> None:
    toy = dataclasses.replace(POOLED, name="toy", spec=ToySpec, module=f"{__name__}:TakesAll")
    monkeypatch.setitem(MECHANISMS, "toy", toy)
    assert modules_of({"kind": "toy", "rows": 4}) == [TakesAll]
    assert built([TakesAll], GPT2, {"kind": "toy", "rows": 4}).taken == {"rows": 4}
    monkeypatch.setitem(MECHANISMS, "toy", dataclasses.replace(toy, module=f"{__name__}:TakesRows"))
    with pytest.raises(TypeError, match=r"^the module of 'toy' does not take speed, which"):
        modules_of({"kind": "toy", "rows": 4})


def test_kinds_are_drawn_apart() -> None:
    for place in range(1, 4):
        assert len({mark[place] for mark in MARKS.values()}) == len(MARKS)


def test_one_without_a_mark_takes_the_next_free(monkeypatch: pytest.MonkeyPatch) -> None:
    toys = {name: dataclasses.replace(POOLED, name=name, aliases=(), mark=None) for name in ("toy", "other")}
    monkeypatch.setattr(recurrences, "MECHANISMS", {**MECHANISMS, **toys})
    marks = recurrences._marks()
    assert [mark.word for mark in marks.values()] == [*(mark.word for mark in MARKS.values()), "toy", "other"]
    assert len({mark.marker for mark in marks.values()}) == len({mark.colour for mark in marks.values()}) == len(marks)


def test_pooled_in_closed_form() -> None:
    spec, windowing = PooledSpec(l_ins="all", width=10, depth=1, embeddings=3), Windowing(100)
    network = 2 * (2048 * 10 + 10 * 16 * 3 * 2048)
    a_layer = 3 * 2 * 2048 * 2 * 8 * 64 + 100 * 3 * 4 * 2048  # keys and values of 8 heads, looks of 32
    assert POOLED.flops is not None and POOLED.flops(spec, LLAMA, windowing) == network + 16 * a_layer
    assert POOLED.state_floats is not None and POOLED.state_floats(spec, LLAMA) == 16 * 3 * 2048


def test_a_body_with_grouped_heads_in_closed_form() -> None:
    config = TrialConfig(recurrence="none", window=100)
    projections = 2048 * 2048 * 2 + 2 * 2048 * 512 + 3 * 2048 * 8192
    attention = 2 * 2 * 2048 * 50.5
    assert flops_per_token(config, LLAMA) == 16 * (2 * projections + attention)


@pytest.mark.parametrize(("precision", "number"), [("float32", 4), ("bfloat16", 2)])
@pytest.mark.parametrize(
    ("shape", "a_position"), [(GPT2, 2 * 12 * 768), (LLAMA, 2 * 16 * 8 * 64)], ids=["gpt2", "llama"]
)
def test_inference_memory_is_a_windows_cache_and_the_state(
    shape: Shape, a_position: int, precision: Any, number: int
) -> None:
    config, state = TrialConfig(window=200, recurrence="scores", precision=precision), 3 * shape.hidden
    assert inference_memory(config, shape, state) == 200 * a_position * number + 4 * state
    embeddings = TrialConfig(
        window=200, embeddings=3, precision=precision
    )  # as keys and values; and a sum of positions
    rows = 3 * a_position // shape.layers
    assert inference_memory(embeddings, shape, state) == (200 * a_position + rows) * number + 4 * shape.hidden


@pytest.mark.parametrize("fields", [{}, {"l_ins": "all", "embeddings": 3, "pooling": "recent"}], ids=str)
def test_what_has_no_closed_form_is_counted_the_same(monkeypatch: pytest.MonkeyPatch, fields: dict[str, Any]) -> None:
    config, base = TrialConfig(window=16, bptt_windows=3, width=20, **fields), small_config(n_layer=2)
    shape = shape_of(base.to_dict())
    closed = training_flops_per_token(config, shape, Plan(1))
    assert POOLED.state_floats is not None
    floats = POOLED.state_floats(config.recurrence_spec, shape)
    monkeypatch.setitem(MECHANISMS, "pooled", dataclasses.replace(POOLED, flops=None, work=None, state_floats=None))
    found = counted(config, base)
    assert training_flops_per_token(config, shape, Plan(1), found.work) == closed and found.state_floats == floats


def test_a_trial_has_the_fields_of_its_own_mechanism(monkeypatch: pytest.MonkeyPatch) -> None:
    class ToySpec(BaseModel):
        width: int = FIELDS["width"]

    monkeypatch.setitem(MECHANISMS, "toy", dataclasses.replace(POOLED, name="toy", spec=ToySpec))
    values = {"recurrence": "x", "width": 1, "l_ins": 2, "recurrence_rate": 3.0, "trainable": "all", "window": 4}
    assert own_values("toy", values).keys() == values.keys() - {"l_ins"}
    assert own_values("none", values).keys() == {"recurrence", "window"}
    assert own_values("memory", values) == own_values("pooled", values) == own_values(None, values) == values
    assert not FIELDS.keys() & own_fields(TrialConfig(recurrence="none")).keys()


def test_loras_fields_are_a_trials_own_where_it_trains_by_lora() -> None:
    for recurrence in ("none", "cache"):
        fields = own_fields(TrialConfig(recurrence=recurrence, trainable="lora", lora_rank=4))
        assert fields["lora_rank"] == 4 and fields["trainable"] == "lora"
        assert not LORA_FIELDS & own_fields(TrialConfig(recurrence=recurrence, lora_rank=4)).keys()


def test_base_bits_are_a_trials_own_where_its_base_is_frozen() -> None:
    for trainable in ("lora", "recurrence"):
        assert own_fields(TrialConfig(trainable=trainable, base_bits=4))["base_bits"] == 4
    assert "base_bits" not in own_fields(TrialConfig())
    chosen = {"recurrence": "none", "trainable": "recurrence", "base_bits": 4}  # a plain model is trained whole
    assert own_values("none", chosen) == {"recurrence": "none"}


def test_a_trial_on_disk_needs_no_mechanism_but_its_own(tmp_path: Path) -> None:
    plain = TrialConfig(recurrence="none", width=7)
    write_yaml(tmp_path / "trial.yaml", plain.plain_values())
    written = read_yaml(tmp_path / "trial.yaml")
    assert not FIELDS.keys() & written.keys()
    assert written.keys() == COMMON - LORA_FIELDS - FROZEN_FIELDS | plain.task.spec.model_fields.keys()
    write_yaml(tmp_path / "trial.yaml", (config := TrialConfig(l_ins="all", width=7)).plain_values())
    assert parse(TrialConfig, read_yaml(tmp_path / "trial.yaml")) == config


def test_what_learns_alone_has_to_be_there() -> None:
    assert parse(TrialConfig, {"trainable": "recurrence"}).trainable == "recurrence"
    with pytest.raises(UserError) as refusal:
        parse(TrialConfig, {"trainable": "recurrence", "recurrence": "none"})
    assert str(refusal.value) == (
        "trainable: 'recurrence' has nothing to learn where the recurrence is 'none'; choose 'all'."
    )


def spec_of(name: str, **more: Any) -> SearchSpec:
    space = {"base": "tiny", "recurrence": {"none": None, name: {"l_ins": [1, 2]}}, "window": [16, 32], "overlap": 0}
    fields = {"space": space, "budget": {"trials": 3, "tokens": "4k"}, "first": [{"recurrence": name, "window": 16}]}
    return parse(SearchSpec, fields | more)


def test_the_former_name_is_understood_in_a_trial(tmp_path: Path) -> None:
    (tmp_path / "trial.yaml").write_text("recurrence: memory\nl_ins: 1\n")
    assert parse(TrialConfig, read_yaml(tmp_path / "trial.yaml")).recurrence == "pooled"
    assert canonical("memory") == "pooled" and canonical("none") == "none" and canonical(3) == 3


def test_the_former_name_stays_in_a_space_as_optuna_knows_it() -> None:
    space = spec_of("memory").parsed_space
    assert space.parameters["recurrence"].values == ("none", "memory")
    assert space.point({"recurrence": "pooled", "l_ins": 2}) == {"recurrence": "memory", "l_ins": 2}
    assert space.point({"recurrence": "memory", "l_ins": 2}) == {"recurrence": "memory", "l_ins": 2}
    assert {fields["recurrence"] for fields in space.corners()} == {"none", "pooled"}
    assert space.fields_of({"recurrence": "memory", "l_ins": 2}) == {"recurrence": "pooled", "l_ins": 2}
    fixed = read_space({"recurrence": "memory", "window": [16, 32]})
    assert fixed.fixed["recurrence"] == "pooled" and fixed.point({"recurrence": "memory"}) == {}
    with pytest.raises(ValueError, match="recurrence: it lists a value twice"):
        read_space({"recurrence": ["memory", "pooled"]})


def test_first_points_are_in_the_spaces_own_words() -> None:
    points = first_points(spec_of("memory"))
    assert [*points] == ["baseline", "paper", "first 1"]
    assert points["paper"] == {"recurrence": "memory", "l_ins": 2, "window": 32}
    assert points["first 1"] == {"recurrence": "memory", "window": 16}
    assert first_points(spec_of("pooled"))["paper"]["recurrence"] == "pooled"


def test_a_search_of_the_former_name_goes_on_with_its_own_words(tmp_path: Path) -> None:
    directory = SearchDirectory.create(tmp_path, "books", spec_of("memory"))
    directory.change_spec(spec_of("pooled", budget={"trials": 9, "tokens": "4k"}))
    assert directory.spec.budget.trials == 9
    assert directory.spec.parsed_space.parameters["recurrence"].values == ("none", "memory")
    with pytest.raises(UserError, match=r"space\.recurrence: books was begun with"):
        directory.change_spec(spec_of("pooled", space=spec_of("pooled").space | {"recurrence": ["none", "pooled"]}))


def test_a_log_of_the_former_name_is_read_in_todays_words() -> None:
    event = {"kind": "trial", "params": {"recurrence": "memory", "window": 3}}
    assert in_current_terms(event)["params"] == {"recurrence": "pooled", "window": 3}


class _Given(EntryPoint):
    """An entry point whose object is at hand."""

    def load(self) -> Any:
        return GIVEN[self.value]


class Shared(BaseModel):
    width: PositiveInt = Field(200, description=FIELDS["width"].description)


class Clashing(BaseModel):
    width: int = Field(200, description="another width")


class Bare(BaseModel):
    rank: int


GIVEN: dict[str, Any] = {
    "shared": dataclasses.replace(POOLED, name="shared", aliases=(), spec=Shared),
    "taken": dataclasses.replace(POOLED, name="memory", aliases=()),
    "clashing": dataclasses.replace(POOLED, name="clashing", aliases=(), spec=Clashing),
    "bare": dataclasses.replace(POOLED, name="bare", aliases=(), spec=Bare),
    "number": 3,
}


def found(name: str) -> tuple[dict[str, Any], list[str]]:
    return recurrences.REGISTRY.load([_Given(name, name, recurrences.REGISTRY.group)])


def test_two_mechanisms_may_share_a_field_that_means_the_same() -> None:
    mechanisms, problems = found("shared")
    assert [*mechanisms] == [*MECHANISMS, "shared"] and not problems


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("taken", "wants to be called 'memory', which is the name of 'pooled'"),
        ("clashing", "has a field 'width' of another type, default or description than that of 'pooled'"),
        ("bare", "has a field 'rank' without a default or a description"),
        ("number", "is a int, not a Mechanism"),
        ("missing", "cannot be loaded (KeyError: 'missing')"),
    ],
)
def test_what_cannot_stand_beside_ours_is_refused_in_a_sentence(name: str, problem: str) -> None:
    mechanisms, problems = found(name)
    assert mechanisms == dict(MECHANISMS)
    assert problems == [f"recurrence: {name!r} of {name} {problem}; mend or uninstall it."]


def test_a_field_that_every_trial_has_is_no_mechanisms() -> None:
    recurrences.check(COMMON)
    of_others = COMMON | tasks.FIELDS.keys()
    assert of_others | FIELDS.keys() == TrialConfig.model_fields.keys() and not of_others & FIELDS.keys()
    with pytest.raises(UserError, match="'pooled' has a field 'width', which every trial has"):
        recurrences.check({"width"})
