"""The search spaces that come with the package: each can be run as it is, and has the paper's configuration in it."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

from recur_tune.common.errors import UserError
from recur_tune.common.parsing import parse, read_yaml
from recur_tune.common.shipped import SEARCH_SPACES, find_space
from recur_tune.common.units import parse_size
from recur_tune.data.corpora.registry import CORPORA
from recur_tune.recurrences.pooled.spec import PAPER
from recur_tune.recurrences.registry import MECHANISMS
from recur_tune.recurrences.second_parts import ROLES
from recur_tune.search.propose.optuna_study import first_points
from recur_tune.search.record.space import Parameter, collect
from recur_tune.search.record.spec import SearchSpec
from recur_tune.search.record.steps import describe_steps
from recur_tune.search.run.preparation import Prices, check_shapes, worst_costs
from tests.cli.run import run

pytestmark = pytest.mark.slow  # each prices a space of real size

NAMES = sorted(file.stem for file in SEARCH_SPACES.glob("*.yaml"))
AS_THEY_ARE = ["quickstart", "enwik8-scratch", "hotpotqa"]  # with `texts` one of each sort; a dry run takes seconds
LARGE = ["enwik8-bpe", "enwik8-bytes", "pg19", "wikitext-103"]
SHORT = {"texts": 48_000, "enwik8-short": 24_000}  # trials of minutes, several on one GPU; tokens in a step
EVERY = {"recurrences": 48_000, "smollm2": 65_536}  # with every recurrence
QUESTIONS = ["hotpotqa"]  # with every recurrence that encoders can have
SCRATCH = ["enwik8-scratch"]  # from random weights
SERIES = ["ett"]


@cache
def shipped(name: str) -> SearchSpec:
    return parse(SearchSpec, read_yaml(find_space(name)))


def with_fields(spec: SearchSpec, **fields: Any) -> SearchSpec:
    """The same with other values in its space."""
    return parse(SearchSpec, spec.model_dump() | {"space": spec.space | fields})


class Given:
    """Answers as Optuna's trial would, with a point and for the rest with the lowest; what is impossible is refused."""

    def __init__(self, point: dict[str, Any]) -> None:
        self.point = point

    def suggest_categorical(self, name: str, choices: list[Any]) -> Any:
        value = self.point.get(name, choices[0])
        assert value in choices
        return value

    def suggest_int(self, name: str, low: int, high: int, *, step: int = 1, log: bool = False) -> int:
        value = self.point.get(name, low)
        assert low <= value <= high and (value - low) % step == 0
        return value

    def suggest_float(
        self, name: str, low: float, high: float, *, step: float | None = None, log: bool = False
    ) -> float:
        value = self.point.get(name, low)
        assert low <= value <= high
        return value


def test_all_that_the_help_names_are_there() -> None:
    assert set(NAMES) == {*LARGE, *SHORT, *EVERY, *QUESTIONS, *SCRATCH, *SERIES, "quickstart"}
    text = run("search", "--help").out
    assert all(name in text for name in NAMES)
    assert (Path(__file__).parents[3] / "search_spaces").resolve() == SEARCH_SPACES.resolve()


def test_every_recurrence_fits_the_base_for_files_of_ones_own() -> None:
    """Whether the other spaces fit is told by their dry runs."""
    check_shapes(with_fields(shipped("recurrences"), corpus="stdlib", tokenizer="bytes"))


@pytest.mark.parametrize("name", NAMES)
def test_a_shipped_space_has_its_text_its_recurrences_and_its_budget(name: str) -> None:
    spec = shipped(name)
    assert spec.parsed_space.fixed["corpus"].partition(":")[0] in CORPORA
    of_encoders = [kind for kind, mechanism in MECHANISMS.items() if mechanism.bidirectional]
    few = {
        "quickstart": ["pooled", "cache"],
        "enwik8-scratch": ["cache", "scores", "blocks"],
        "ett": ["pooled", "cache", "gated_delta", "scores"],
    }.get(name, ["pooled"])
    kinds = MECHANISMS if name in EVERY else of_encoders if name in QUESTIONS else few
    assert {"none", *kinds} == set(spec.parsed_space.parameters["recurrence"].values)
    assert spec.budget.trials and spec.resources.gpus == "auto"
    text = find_space(name).read_text()
    assert text.startswith("# ") and all(len(line) <= 120 for line in text.splitlines())
    plain = {key: value for key, value in yaml.safe_load(text).items() if key != "space"}
    assert "tracking" not in plain, "where runs are compared is the user's business"


@pytest.mark.parametrize("name", LARGE)
def test_the_first_trials_are_the_baseline_and_the_papers_configuration(name: str) -> None:
    spec = shipped(name)
    points = first_points(spec)
    drawn = {role: spec.trial_config(spec.parsed_space.draw(Given(point))) for role, point in points.items()}
    assert {field: getattr(drawn["paper"], field) for field in PAPER} == PAPER
    assert (drawn["baseline"].recurrence, drawn["baseline"].window, drawn["baseline"].overlap) == ("none", 300, 0)
    assert drawn["paper"].checkpointing == "all" and drawn["paper"].precision == "auto"
    base, tokenizer = ("mini", "bytes") if name == "enwik8-bytes" else ("gpt2", None)
    assert (drawn["paper"].base, drawn["paper"].tokenizer) == (base, tokenizer)


def test_every_mechanism_begins_in_the_baselines_windows() -> None:
    spec = shipped("recurrences")
    points = first_points(spec)
    readings = {
        role: (drawn["window"], drawn["overlap"])
        for role, point in points.items()
        if (drawn := spec.parsed_space.draw(Given(point)))
    }
    assert len(readings) > 7 and set(readings.values()) == {(300, 0)}


def test_short_searches_begin_with_what_was_best_before() -> None:
    """docs/results/books.md has the comparison, and its rates."""
    form = {"l_ins": "all", "width": 200, "depth": 3, "pooling": "recent", "embeddings": 8, "skip": True, "overlap": 0}
    for name in SHORT:
        spec = shipped(name)
        recurrent = [given for given in spec.first if given["recurrence"] == "pooled"]
        assert recurrent and all(given.items() >= form.items() for given in recurrent)
        assert [role for role in first_points(spec) if role.startswith("first")] == [
            f"first {number}" for number in range(1, len(spec.first) + 1)
        ]


@pytest.mark.parametrize("name", LARGE)
def test_rungs_and_workers_come_out_even(name: str) -> None:
    spec = shipped(name)
    assert spec.budget.rung_tokens == [2_000_000, 6_000_000, 18_000_000, 54_000_000]
    for corner in spec.parsed_space.corners():
        config = spec.trial_config(corner)
        step = config.batch * config.bptt_windows * (config.window - config.overlap)
        assert config.batch * config.bptt_windows == 80
        assert spec.budget.rung_tokens[0] / step > config.warmup, "compared when the learning rate is up"
    check_shapes(spec.model_copy(update={"resources": spec.resources.model_copy(update={"workers": 2})}))


@pytest.mark.parametrize("name", EVERY)
def test_every_recurrence_has_its_fields_and_its_own_first_trials(name: str) -> None:
    spec = shipped(name)
    below = spec.parsed_space.parameters["recurrence"].below
    beside = {field for one in ROLES["beside"].values() for field in one.spec.model_fields}
    for kind, mechanism in MECHANISMS.items():
        own: dict[str, Parameter] = {}
        collect(below[kind], own)
        usual = beside if "beside" in mechanism.spec.model_fields else set()  # a part beside has its usual form
        assert mechanism.spec.model_fields.keys() - usual <= own.keys()
        assert ("trainable" in below[kind]) == (name == "smollm2") and "recurrence_rate" in below[kind]
    roles = [role for mechanism in MECHANISMS.values() for role in mechanism.first]
    assert {"baseline", *roles} <= first_points(spec).keys()
    assert spec.objectives[:2] == ("perplexity", "flops_per_token")


def test_an_objective_fits_its_text() -> None:
    for name in [*LARGE, *SHORT]:
        quality = "bits_per_byte" if name.startswith("enwik8") else "perplexity"
        assert shipped(name).objectives == (quality, "flops_per_token", "peak_memory")


@pytest.mark.parametrize("name", SCRATCH)
def test_from_scratch_begins_with_the_four_forms_in_equal_steps(name: str) -> None:
    spec = shipped(name)
    drawn = [spec.trial_config(spec.parsed_space.draw(Given(point))) for point in first_points(spec).values()]
    forms = [(one.recurrence, getattr(one, "beside", "none")) for one in drawn[-4:]]
    assert forms == [("none", "none"), ("cache", "none"), ("cache", "scores"), ("cache", "blocks")]
    assert {one.base for one in drawn} == {"none:14x512x8"} and {one.window for one in drawn[-4:]} == {512}
    assert {one.batch * one.window * one.bptt_windows for one in spec.corners} == {12_288}
    check_shapes(with_fields(spec, corpus="stdlib"))


def test_the_limit_of_a_shipped_space_holds_its_largest_trial() -> None:
    """The other three have GPT-2's shape and take ten seconds a simulation; their largest trial needs 20.7 GiB."""
    spec = shipped("enwik8-bytes")
    largest = {
        "recurrence": "pooled", "l_ins": 1, "width": 800, "depth": 4, "pooling": "attention", "embeddings": 4,
        "window": 1000, "overlap": 0, "bptt_windows": 5, "batch": 16, "learning_rate": 1e-3,
    }  # fmt: skip
    config = spec.trial_config(largest)
    costs = Prices()(config.model_copy(update={"precision": "bfloat16"}))
    assert parse_size("2GiB") < costs["peak_memory"] < spec.limits["peak_memory"]


def test_a_preset_is_priced_for_the_tokenizer_that_it_gets() -> None:
    config = shipped("enwik8-bytes").trial_config({"window": 20, "batch": 2, "bptt_windows": 2})
    bytes_, bpe = Prices()(config), Prices()(config.model_copy(update={"tokenizer": None}))
    assert bpe["parameters"] - bytes_["parameters"] == (50257 - 256) * 512
    assert bytes_["peak_memory"] < bpe["peak_memory"]


@pytest.mark.parametrize("name", AS_THEY_ARE)
def test_a_dry_run_prints_a_space_that_can_be_run_again(name: str, tmp_path: Path) -> None:
    outcome = run("search", name, "--dry-run", "--results", tmp_path / "results")
    assert outcome.code == 0, outcome.err
    assert "nothing was started" in outcome.err and not (tmp_path / "results").exists()
    assert "# begins with the plain baseline" in outcome.out
    assert ("# pretrains its base first, tiny with 600k tokens" in outcome.out) == (name == "quickstart")
    assert ("# begins with the paper" in outcome.out) == (name not in SCRATCH)
    assert f"# {describe_steps(shipped(name))}\n" in outcome.out and "note: warmup_steps" not in outcome.err
    (tmp_path / "again.yaml").write_text(outcome.out)
    assert parse(SearchSpec, read_yaml(tmp_path / "again.yaml")) == shipped(name)


def test_a_space_for_files_of_ones_own_says_what_it_needs_and_takes_them(tmp_path: Path) -> None:
    refused = run("search", "texts", "--dry-run", "--results", tmp_path / "results")
    assert refused.code == 2 and "text:books names no folder; write text:DIR" in refused.err
    for split in ("train", "validation", "test"):
        (tmp_path / "my books" / split).mkdir(parents=True)
        (tmp_path / "my books" / split / "one.txt").write_text("It was a dark and stormy night. " * 50)
    mine = ["--set", f"space.corpus=text:{tmp_path / 'my books'}", "--set", "space.tokenizer=bytes"]
    outcome = run("search", "texts", "--dry-run", "--results", tmp_path / "results", *mine)
    assert outcome.code == 0, outcome.err
    assert "nothing was started" in outcome.err and "note: reference" not in outcome.err
    assert "\n# reads train from 1 file (1.56 KiB), validation from 1 file (1.56 KiB)\n" in outcome.out
    (tmp_path / "again.yaml").write_text(outcome.out)
    again, texts = parse(SearchSpec, read_yaml(tmp_path / "again.yaml")), shipped("texts")
    assert (again.first, again.budget, again.limits) == (texts.first, texts.budget, texts.limits)


@pytest.mark.parametrize(("corpus", "kind"), [("enwik8", "file"), ("wikitext-103", "folder"), ("pg19", "folder")])
def test_a_dry_run_refuses_a_corpus_that_is_not_there(corpus: str, kind: str, tmp_path: Path) -> None:
    lost = f"{corpus}:{tmp_path / 'lost'}"
    refused = run("search", "quickstart", "--dry-run", "--results", tmp_path / "r", "--set", f"space.corpus={lost}")
    assert refused.code == 2 and f"corpus: {lost} names no {kind};" in refused.err


@pytest.mark.parametrize(("name", "tokens"), [*SHORT.items(), *EVERY.items()])
def test_a_step_of_a_short_trial_reads_about_as_much_whatever_the_window(name: str, tokens: int) -> None:
    spec = shipped(name)
    steps = [config.batch * config.bptt_windows * config.window for config in spec.corners]
    assert max(steps) <= tokens and min(steps) >= 0.75 * tokens
    assert spec.budget.rung_tokens[:2] == [3_000_000, 9_000_000]


def test_the_worst_flops_that_count_are_those_of_the_dearest_corner() -> None:
    spec = shipped("wikitext-103")
    worst = worst_costs(spec, Prices(), lambda config: config)
    assert worst["peak_memory"] == spec.limits["peak_memory"]
    assert 2.2e8 < worst["flops_per_token"] < 2.4e8


def test_a_file_wins_over_a_shipped_name_and_an_unknown_name_lists_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert find_space("pg19") == SEARCH_SPACES / "pg19.yaml"
    Path("pg19").write_text("mine")
    assert find_space("pg19") == Path("pg19")
    with pytest.raises(UserError, match=rf"pg20.*{', '.join(NAMES)}"):
        find_space("pg20")


def test_a_reference_that_is_another_corpus_is_told(tmp_path: Path) -> None:
    words = ["search", "quickstart", "--dry-run", "--results", tmp_path / "results", "--set", "space.corpus=recall"]
    assert "note: reference: token_perplexity 1.8 was chosen for quickstart's own corpus" in run(*words).err
    assert "note: reference" not in run(*words, "--set", "reference={}").err
