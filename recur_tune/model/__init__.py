"""The recurrent language model; it knows nothing of training."""

from transformers import AutoConfig, AutoModelForCausalLM

from recur_tune.model.bodies import BODIES
from recur_tune.model.bodies.gpt2 import RecurrentGPT2, RecurrentGPT2Config
from recur_tune.model.cache import Cache, TextCache
from recur_tune.model.reader import Reading, ReadsInWindows
from recur_tune.model.recurrence import Passage, Recurrence, State

__all__ = [
    "Cache", "Passage", "Reading", "ReadsInWindows", "Recurrence", "RecurrentGPT2", "RecurrentGPT2Config", "State",
    "TextCache",
]  # fmt: skip

for _body in BODIES.values():
    AutoConfig.register(_body.config_class.model_type, _body.config_class)
    AutoModelForCausalLM.register(_body.config_class, _body)
