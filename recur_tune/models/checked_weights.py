"""Checks of a base: that its kind is one that we read, and that its files have every weight of the model."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from torch import nn

from recur_tune.common.errors import UserError
from recur_tune.common.shape import FAMILIES, family_of

_NAMED = 3  # tensors of a sentence; the others are counted
_SLIDING = ("mistral", "qwen2", "qwen3")  # families whose windows stay within a sliding window


def check_kind(base: str, settings: Mapping[str, Any]) -> None:
    """Refuse a configuration that transformers reads in another way than we do."""
    if quantised := settings.get("quantization_config"):
        method = quantised.get("quant_method") if isinstance(quantised, Mapping) else None
        raise UserError(
            f"base: {base} is quantised ({method or 'by a method that it does not name'}: quantization_config in its "
            "config.json), and quantised weights cannot be trained; give the model before quantisation, or a GGUF file."
        )
    family = family_of(settings)
    if not FAMILIES[family].is_encoder and settings.get("is_causal") is False:
        raise UserError(f"base: {base} attends to later tokens (is_causal: false), and {family} is read causally here.")
    if FAMILIES[family].is_encoder and settings.get("is_decoder"):
        raise UserError(f"base: {base} is a decoder (is_decoder: true), and {family} is read in both directions here.")
    known = {"full_attention", *(("sliding_attention",) if family in _SLIDING else ())}
    if others := sorted(set(settings.get("layer_types") or ()) - known):
        raise UserError(
            f"base: {base} has layers of type {', '.join(map(repr, others))} (layer_types), which {family} does not "
            f"have here; these are: {', '.join(sorted(known))}."
        )


def check_loaded(named: str, model: nn.Module, found: Mapping[str, Any], fresh: Collection[str] = ()) -> None:
    """Refuse weights that are not what the model has; transformers would fill it up with random ones.

    Args:
        named: Field and name, for the message.
        model: As it was loaded.
        found: transformers' `output_loading_info`.
        fresh: How names of weights begin that a base need not have.
    """
    if missing := sorted(name for name in found["missing_keys"] if not name.startswith(tuple(fresh))):
        raise UserError(
            f"{named} lacks {_listed(missing)}, which its config.json describes; get its files again, or give a whole "
            "model."
        )
    if mismatched := sorted(name for name, *_ in found["mismatched_keys"]):
        raise UserError(f"{named} has {_listed(mismatched)} in another shape than its config.json describes.")
    # A scale or a bias beside weights that are read belongs to a layer of another kind.
    read = {name.rpartition(".")[0] for name, _ in model.named_parameters()}
    roots = ("", f"{model.base_model_prefix}.")
    beside = sorted(n for n in found["unexpected_keys"] if any(f"{r}{n}".rpartition(".")[0] in read for r in roots))
    if beside:
        raise UserError(
            f"{named} has {_listed(beside)} beside weights that are read, so its layers are of another kind than its "
            "config.json describes; give a model whose files fit its config.json."
        )


def unread_remark(base: str, unread: Collection[str]) -> str | None:
    """A sentence that names the tensors of a base's files that no model of its family has."""
    return f"base: {base} has {_listed(sorted(unread))}, which the model does not use." if unread else None


def _listed(names: list[str]) -> str:
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return f"{', '.join(names[:_NAMED])}{more}"
