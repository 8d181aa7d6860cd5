"""Tokens per second of overlapped evaluation: Hugging Face's loop over strided windows, and ours.

    python benchmarks/evaluation.py                                            # small sizes, for a CPU
    python benchmarks/evaluation.py --base gpt2 --window 300 --overlap 30 --documents 20 --length 40000 --batch 20

Both score every token of a document once, with the same context. Hugging Face's loop, from its documentation, reads one
window at a time and masks the context in the loss. It gets one document, because it is slow.
"""

from __future__ import annotations

import argparse
import time

import numpy as np
import torch
from rich.console import Console
from rich.table import Table
from transformers import AutoModelForCausalLM, PreTrainedModel

from recur_tune.common.units import format_count
from recur_tune.common.windowing import NOT_SCORED, Windowing
from recur_tune.data.tokens import TokenisedSplit
from recur_tune.models.pretrained import base_config, fresh_model, recurrent_config
from recur_tune.ops.device import autocast, default_device, device_name
from recur_tune.recurrences.pooled.spec import PooledSpec
from recur_tune.tasks.language_modelling.evaluation import evaluate


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--base", default="tiny", help="a preset or a published shape; weights are random")
    parser.add_argument("--window", type=int, default=64)
    parser.add_argument("--overlap", type=int, default=16)
    parser.add_argument("--documents", type=int, default=8)
    parser.add_argument(
        "--length", type=int, default=4000, help="tokens of the longest document; the shortest has half"
    )
    parser.add_argument("--batch", type=int, default=32)
    arguments = parser.parse_args()
    device, base = default_device(), base_config(arguments.base)
    windowing = Windowing(arguments.window, arguments.overlap)
    split = made_up(base.vocab_size, arguments.documents, arguments.length)
    torch.manual_seed(0)
    stock = AutoModelForCausalLM.from_config(base, dtype=torch.float32).to(device).eval()
    table = Table(
        f"{arguments.base}, windows of {arguments.window}, {arguments.overlap} read again", "tokens/s", box=None
    )
    part = split.head(arguments.length)
    strided(stock, part.head(20 * windowing.size), windowing, device)
    rate, expected = strided(stock, part, windowing, device)
    table.add_row("Hugging Face, strided windows", format_count(rate), "1.0 x")
    for title, recurrence in (("ours, plain", None), ("ours, pooled", PooledSpec())):
        model = fresh_model(recurrent_config(base, recurrence, None)).to(device)
        model.load_state_dict(stock.state_dict(), strict=False)
        found = evaluate(model, part, windowing, arguments.batch)
        if recurrence is None:
            assert abs(found.nll / found.tokens / expected - 1) < 1e-3, (found.nll / found.tokens, expected)
        whole = evaluate(model, split, windowing, arguments.batch)
        ours = whole.tokens / whole.seconds
        table.add_row(title, format_count(ours), f"{ours / rate:.1f} x")
    console = Console(width=110)
    console.print(f"torch {torch.__version__}, {device_name(device)}")
    console.print(table)


def made_up(vocabulary: int, documents: int, length: int) -> TokenisedSplit:
    random = np.random.default_rng(0)
    lengths = np.linspace(length // 2, length, documents).astype(int)[::-1]
    tokens = random.integers(vocabulary, size=lengths.sum(), dtype=np.int64)
    ones = np.ones(len(tokens), dtype=np.int64)
    return TokenisedSplit(tokens, ones, ones, np.append(0, lengths.cumsum()), np.array([], dtype=np.int64))


@torch.no_grad()
def strided(
    model: PreTrainedModel, split: TokenisedSplit, windowing: Windowing, device: torch.device
) -> tuple[float, float]:
    """Tokens per second and nats per token, one window after another."""
    started, total, count = time.perf_counter(), 0.0, 0
    for begin, end in split.document_inputs():
        document = torch.from_numpy(split.tokens[begin : end + 1].astype(np.int64)).to(device)[None]
        scored = 0
        for first in range(0, end - begin, windowing.stride):
            last = min(first + windowing.size, end - begin)
            labels = document[:, first + 1 : last + 1].clone()
            labels[:, : scored - first] = NOT_SCORED
            with autocast(device, "auto"):
                logits = model(document[:, first:last]).logits
            loss = torch.nn.functional.cross_entropy(
                logits[0].float(), labels[0], ignore_index=NOT_SCORED, reduction="sum"
            )
            total += loss.item()
            count, scored = count + last - scored, last
            if last == end - begin:
                break
    return count / (time.perf_counter() - started), total / count


if __name__ == "__main__":
    main()
