"""What a recurrence without closed forms costs: counted by torch over one window on the meta device, without data."""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

import torch
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import FlopCounterMode
from transformers import PretrainedConfig

from recur_tune.model.pretrained import described_model, recurrent_config
from recur_tune.recurrences import Work
from recur_tune.spec import TrialConfig


class Counted(NamedTuple):
    """A recurrence's forward FLOPs in one window, and the numbers in one lane's state."""

    work: Work
    state_floats: int


def counted(config: TrialConfig, base: PretrainedConfig) -> Counted:
    """Count a trial's recurrence on a base of this shape."""
    shape = recurrent_config(base, config.recurrence_spec, None).to_json_string(use_diff=False)
    return _counted(shape, config.window)


@cache
def _counted(shape: str, window: int) -> Counted:
    """Only what makes a difference is an argument, so that trials which differ in the rest share an answer."""
    with torch.device("meta"):
        model = described_model(shape).eval()
        tokens_BT = torch.zeros((1, window), dtype=torch.long)
    state = model.read(tokens_BT).state

    def flops(with_state: bool, leave_state: bool) -> int:
        with FlopCounterMode(display=False) as counter:
            model.read(tokens_BT, state if with_state else None, leave_state=leave_state)
        return counter.get_total_flops()

    plain = flops(False, False)
    work = Work(made=flops(False, True) - plain, used=flops(True, False) - plain)
    return Counted(work, sum(leaf.numel() for leaf in tree_leaves(state)))
