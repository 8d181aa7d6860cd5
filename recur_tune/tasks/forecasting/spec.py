"""Forecasting: from a window of a series the next time steps of all its columns.

A token is a time step. A window's forecasts begin at the ends of its patches; a body without patches has one, at the
window's end.
"""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, PositiveInt

from recur_tune.common.errors import UserError
from recur_tune.common.shape import Shape
from recur_tune.common.windowing import Windowing
from recur_tune.data.corpora.document import SPLITS
from recur_tune.data.corpora.registry import open_corpus
from recur_tune.data.corpora.series import SeriesCorpus
from recur_tune.tasks.task import Quality, Task

_POSITIONS = 1024  # of a patch decoder: rotary ones, which have no weights
_DROPOUT = 0.1
_INFORMERS_DROPOUT = 0.05
_INFORMERS_FACTOR = 5


class ForecastingSpec(BaseModel):
    """The fields of forecasting."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    horizon: PositiveInt = Field(96, description="time steps that are forecast at once")
    body: Literal["patches", "informer", "dlinear"] = Field(
        "patches",
        description="what forecasts: 'patches', a causal decoder over patches of one column at a time; 'informer', all "
        "columns at once; or 'dlinear', two matrices from a window to the horizon, the baseline of every table",
    )
    patch: PositiveInt = Field(24, description="time steps of a patch; a window and an overlap are whole patches")
    body_layers: PositiveInt = Field(
        3, description="layers of 'patches', or of the encoder of 'informer', whose decoder has one"
    )
    body_width: PositiveInt = Field(64, description="size of the residual stream of 'patches' and 'informer'")
    body_heads: PositiveInt = Field(4, description="attention heads of 'patches' and 'informer'")
    label_steps: PositiveInt | None = Field(
        None,
        description="last time steps of a window that the decoder of 'informer' reads before the horizon; default: "
        "half of the window",
    )


def patch_of(spec: ForecastingSpec, window: int) -> int:
    """Time steps of a position; without patches a whole window is one."""
    return spec.patch if spec.body == "patches" else window


def body_of(spec: ForecastingSpec, corpus: str, windowing: Windowing) -> dict[str, Any]:
    """The configuration of the body, for the corpus's columns."""
    opened = open_corpus(corpus)
    assert isinstance(opened, SeriesCorpus), "the corpus decides the task"
    _check_lengths(spec, opened, windowing)
    sizes = {"columns": len(opened.series.names), "horizon": spec.horizon, "patch": patch_of(spec, windowing.size)}
    if spec.body == "dlinear":
        return {"model_type": "dlinear", **sizes}
    heads = spec.body_heads if spec.body == "informer" else 2 * spec.body_heads
    if spec.body_width % heads or spec.body_width % 2:
        even = "" if spec.body == "informer" else " of an even size"
        raise UserError(
            f"body_width: {spec.body_width} cannot be shared by {spec.body_heads} heads{even}; choose a multiple of "
            f"{heads}."
        )
    if spec.body == "informer":
        return _informer(spec, windowing) | sizes
    for field, steps in (("window", windowing.size), ("overlap", windowing.overlap)):
        if steps % spec.patch:
            raise UserError(
                f"{field}: {steps} time steps are no whole number of patches of {spec.patch}; choose a multiple of "
                "that, or another patch."
            )
    return {
        "model_type": "patches", **sizes, "vocab_size": 1, "bos_token_id": None, "eos_token_id": None,
        "hidden_size": spec.body_width, "intermediate_size": 2 * spec.body_width,
        "num_hidden_layers": spec.body_layers, "num_attention_heads": spec.body_heads,
        "max_position_embeddings": _POSITIONS, "attention_dropout": _DROPOUT, "hidden_dropout": _DROPOUT,
    }  # fmt: skip


def _informer(spec: ForecastingSpec, windowing: Windowing) -> dict[str, Any]:
    """Informer2020's configuration, but for the sizes that are fields."""
    if (label := spec.label_steps or -(-windowing.size // 2)) > windowing.size:
        raise UserError(f"label_steps: {label} are more than the window of {windowing.size}; choose at most as many.")
    return {
        "model_type": "informer", "label": label, "d_model": spec.body_width,
        "encoder_layers": spec.body_layers, "decoder_layers": 1,
        "encoder_attention_heads": spec.body_heads, "decoder_attention_heads": spec.body_heads,
        "encoder_ffn_dim": 4 * spec.body_width, "decoder_ffn_dim": 4 * spec.body_width,
        "dropout": _INFORMERS_DROPOUT, "attention_dropout": _INFORMERS_DROPOUT,
        "activation_dropout": _INFORMERS_DROPOUT, "sampling_factor": _INFORMERS_FACTOR,
    }  # fmt: skip


def _check_lengths(spec: ForecastingSpec, corpus: SeriesCorpus, windowing: Windowing) -> None:
    """Refuse windows and horizons that a split has no room for."""
    borders = corpus.borders
    train, window = borders["train"][1], windowing.size
    if train < window + spec.horizon:
        raise UserError(
            f"window: {window} time steps and a horizon of {spec.horizon} behind them are more than the {train} "
            f"training rows of {corpus.path.name}; choose less of either."
        )
    for split in SPLITS:
        begin, end = borders[split]
        if end - begin < spec.horizon:
            raise UserError(
                f"horizon: {spec.horizon} time steps are more than the {end - begin} rows of the {split} split of "
                f"{corpus.path.name}; choose at most as many."
            )


def _head(shape: Shape, positions: int) -> int:
    """What is forecast outside the blocks, in all columns; what reads is counted apart, since it has no gradient."""
    return shape.columns * positions * shape.forecasting


FORECASTING = Task(
    name="forecasting",
    spec=ForecastingSpec,
    module="recur_tune.tasks.forecasting.code:Forecasting",
    qualities=(Quality("mse", "MSE"), Quality("mae", "MAE")),
    loss_of="forecast number",
    bidirectional=False,
    reserved=lambda spec: 0,
    head=_head,
    memory_fields=frozenset(ForecastingSpec.model_fields),
    body=body_of,
    counts_head=True,
    picture="recur_tune.report.figures.forecasts:draw_forecasts",
)
