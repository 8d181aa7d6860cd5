"""Small trials that share a GPU: the speed-up of a search.

    python benchmarks/shared_gpu.py [--trials 64] [--alone 16] [--shares 1 0.25 auto]
    python benchmarks/shared_gpu.py --of cpus --shares 2 1        # without a GPU

The same trials of the quickstart's space (random sampling, one seed, no early stops) in every row, from a GPT-2 of 4
layers of 256 units with random weights. Time is from the first trial's start to the last one's end: without Ray's own
start, with that of the trials' processes. The first row may have fewer trials than the others, because seconds per
trial are compared.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

from transformers import GPT2Config

import recur_tune
from recur_tune.common.errors import UserError
from recur_tune.data.tokenizers import load_tokenizer
from recur_tune.models import RecurrentGPT2
from recur_tune.models.pretrained import recurrent_config, save_model

SHAPE = GPT2Config(
    n_layer=4, n_embd=256, n_head=4, n_positions=128, vocab_size=256, bos_token_id=None, eos_token_id=None
)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trials", type=int, default=16)
    parser.add_argument("--alone", type=int, help="trials of the first row, where all of them would take too long")
    parser.add_argument("--tokens", default="100k", help="of each trial")
    parser.add_argument("--of", choices=["gpus", "cpus"], default="gpus", help="what is shared")
    parser.add_argument("--shares", type=_share, nargs="+", default=[1.0, 0.25, "auto"], help="for a trial")
    arguments = parser.parse_args()
    print(f"{arguments.of + ' for a trial':<18}{'trials':>8}{'all':>10}{'each':>10}{'sooner':>10}", flush=True)
    first: float | None = None
    for row, share in enumerate(arguments.shares):
        trials = arguments.alone if arguments.alone and row == 0 else arguments.trials
        print(f"{share if share == 'auto' else format(share, 'g'):<18}", end="", flush=True)  # the rest takes its time
        try:
            taken = seconds(trials, arguments.tokens, {arguments.of: share})
        except UserError as error:
            parser.error(str(error))
        each = taken / trials
        first = first or each
        print(f"{trials:>8}{taken:>8.1f} s{each:>8.2f} s{first / each:>8.2f} x", flush=True)


def _share(text: str) -> float | str:
    return text if text == "auto" else float(text)


def seconds(trials: int, tokens: str, resources: dict[str, float | str]) -> float:
    """Of a search, from the first trial's start to the last one's end."""
    with tempfile.TemporaryDirectory() as folder:
        base = Path(folder) / "base"
        save_model(RecurrentGPT2(recurrent_config(SHAPE, None, None)), load_tokenizer("bytes"), base)
        changes = {
            "space.base": str(base), "limits.peak_memory": "1GiB",
            "budget.trials": trials, "budget.rungs": 1, "budget.tokens": tokens, "sampler.name": "random",
            **{f"resources.{name}": share for name, share in resources.items()},
        }  # fmt: skip
        found = recur_tune.search("quickstart", "shared", results=folder, settings=changes)
        events = [event for event, _ in found.directory.events()]
    starts = [event["time"] for event in events if event["kind"] == "running"]
    ends = [event["time"] for event in events if event.get("state") == "complete"]
    if len(ends) != trials:
        raise SystemExit(f"{trials - len(ends)} of {trials} trials did not end: recur-tune search quickstart says why.")
    return max(ends) - min(starts)


if __name__ == "__main__":
    main()
