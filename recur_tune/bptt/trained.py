"""What of a trial's model learns, and in which dtype the rest is held on a device."""

from __future__ import annotations

import torch

from recur_tune.config.trial import TrialConfig
from recur_tune.models.trained import Trained
from recur_tune.ops.device import uses_bfloat16


def trained_of(config: TrialConfig, device: torch.device) -> Trained:
    """What learns; where products are in bfloat16, so are frozen matrices that have no fewer bits."""
    return Trained(config.trainable, config.lora_spec, uses_bfloat16(device, config.precision), config.base_bits)
