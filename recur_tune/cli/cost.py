"""`recur-tune cost`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from recur_tune.cli.display import print_table, stderr
from recur_tune.cli.options import as_json, fields_from, print_json, trial_options
from recur_tune.common.errors import UserError
from recur_tune.common.parsing import parse
from recur_tune.common.units import format_count, format_seconds, format_size
from recur_tune.config.batch_share import check_share
from recur_tune.config.trial import TrialConfig
from recur_tune.cost.communication import LINKS, exchange_seconds
from recur_tune.cost.descriptors import COSTS

if TYPE_CHECKING:
    from transformers import PretrainedConfig


@click.command()
@click.argument("config", required=False, type=click.Path(path_type=Path))
@trial_options()
@click.option(
    "--workers", type=click.IntRange(min=1), default=1, show_default=True, help="Workers that share the batch."
)
@click.option("--shard", is_flag=True, help="They share the optimizer's state too (ZeRO stage 1).")
@as_json
def cost(config: Path | None, fields: dict[str, Any], workers: int, shard: bool, as_json: bool) -> None:
    """Tell what a configuration costs before anything runs.

    FLOPs per token are those of one forward pass of the blocks and the recurrence for every token that is scored,
    so overlap increases them; Tables 1 and 2 of "Adding recurrence to pretrained transformers" count the same.
    Training FLOPs count everything, recomputation included. Peak memory comes from a simulated step on fake
    tensors: no weights are loaded, nothing is downloaded for the models we know (the GPT-2s, SmolLM2, Llama 3.2,
    Mistral 7B, Qwen2.5, Qwen3). With several workers it is that of each, and what they exchange in a step is told
    beside it.
    Inference memory is the key-value cache of one window and the state, which is all that a text of any length takes.

    \b
      recur-tune cost --base gpt2 --window 300 --overlap 30
      recur-tune cost --base Qwen/Qwen2.5-1.5B --window 300 --batch 16 --workers 4 --shard
      recur-tune cost --base gpt2-xl --batch 4 --checkpointing auto --memory-budget 80GiB --precision bfloat16
    """
    trial = parse(TrialConfig, fields_from(config, fields))
    check_share(trial.batch, (workers,))
    if shard and workers == 1:
        raise UserError("shard: one worker has no other to share the optimizer's state with; add --workers 2 or more.")
    with stderr.status("computing the costs of a step …"):
        from recur_tune.config.base_shape import trial_settings
        from recur_tune.cost.estimate import estimate
        from recur_tune.cost.flops import recomputed_windows

        settings = trial_settings(trial)
        price = estimate(trial, settings, workers, shard)
    if as_json:
        print_json(price.to_dict())
        return
    print_table(
        f"{trial.body_name} with {trial.recurrence}, window {trial.window}, overlap {trial.overlap}, "
        f"batch {trial.batch}",
        {
            **{cost.explained: cost.unit.format(price.costs[name]) for name, cost in COSTS.items()},
            "parameters": f"{price.costs['parameters']:,} ({price.recurrence_parameters:,} of them the recurrence's)",
            "parameters that learn": f"{price.trained_parameters:,}",
            **_fewer_bits(trial),
            "windows kept / recomputed": f"{price.plan.kept_windows} / {recomputed_windows(trial, price.plan)}",
            **_teacher(trial, settings),
            **_exchange(price.exchanged_bytes, workers),
        },
    )


def _fewer_bits(trial: TrialConfig) -> dict[str, str]:
    """How a frozen base is held, where its blocks are quantised."""
    if trial.base_bits == 16:
        return {}
    return {"the base": f"frozen, its blocks in {trial.base_bits} bits; dequantising them counts no FLOPs"}


def _teacher(trial: TrialConfig, base: PretrainedConfig) -> dict[str, str]:
    """What a teacher's predictions take for each token of the training text; nothing without one."""
    from recur_tune.common.shape import shape_of
    from recur_tune.cost.flops import plain_reading_flops

    if trial.teacher is None:
        return {}
    shape = shape_of(base.to_dict())
    flops, size = plain_reading_flops(shape, trial.teacher.windowing(shape)), trial.teacher.bytes_per_token(shape)
    return {"teacher, once for each token of the text": f"{format_count(round(flops))} FLOPs, {size} bytes on disk"}


def _exchange(sent: int, workers: int) -> dict[str, str]:
    """What several workers exchange, and how long that takes; nothing for one."""
    if workers == 1:
        return {}
    seconds = ", ".join(f"{format_seconds(exchange_seconds(sent, speed))} over {link}" for link, speed in LINKS.items())
    return {f"sent by each of {workers} workers in a step": f"{format_size(sent)} ({seconds})"}
