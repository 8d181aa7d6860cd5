"""The subject of a search: its corpus, and the base models of its trials."""

from __future__ import annotations

from typing import Any

from recur_tune.common.units import rounded
from recur_tune.config.fields import own_fields
from recur_tune.config.trial import TrialConfig
from recur_tune.search.record.space import Choice
from recur_tune.search.record.spec import SearchSpec
from recur_tune.search.record.state import TrialRecord
from recur_tune.tasks.registry import task_of


def corpus_of(spec: SearchSpec) -> str:
    """The one corpus of a search."""
    return spec.parsed_space.field("corpus") or TrialConfig.model_fields["corpus"].default


def bases_of(spec: SearchSpec) -> list[str]:
    """The base models to choose from, or the families of bodies that are made from nothing."""
    if task_of(corpus_of(spec)).body is not None:
        return sorted({config.body_name for config in spec.corners})
    named = spec.parsed_space.field("base") or TrialConfig.model_fields["base"].default
    return list(named.values) if isinstance(named, Choice) else [named]


def shape_params(spec: SearchSpec) -> dict[str, Any]:
    """The bases' sizes as parameters of a run; empty where a base cannot be read."""
    from recur_tune.config.base_shape import base_shape

    tokenizer = spec.parsed_space.field("tokenizer")
    if task_of(corpus_of(spec)).body is not None:
        return {}  # bodies are made from the trials' fields
    try:
        shapes = [base_shape(base, tokenizer if isinstance(tokenizer, str) else None) for base in bases_of(spec)]
    except Exception:  # folders and the Hub fail in many ways, and these parameters are optional
        return {}
    sizes = {
        "layers": [shape.layers for shape in shapes], "heads": [shape.heads for shape in shapes],
        "embedding": [shape.hidden for shape in shapes], "positions": [shape.context for shape in shapes],
        "vocabulary": [shape.vocabulary for shape in shapes], "parameters": [shape.parameters for shape in shapes],
    }  # fmt: skip
    return {f"base.{name}": ", ".join(map(str, values)) for name, values in sizes.items()}


def trial_params(spec: SearchSpec, trial: TrialRecord) -> dict[str, Any]:
    """The fields that a trial has, by which people compare trials."""
    fields = own_fields(spec.trial_config(trial.params, trial.seed))
    return {name: rounded(value) if isinstance(value, float) else value for name, value in fields.items()}
