"""The recurrent language model; it knows nothing of training."""

from recur_tune.model.language_model import Cache, Reading, RecurrentGPT2, RecurrentGPT2Config, State
from recur_tune.model.recurrence import Memory
from recur_tune.spec import MemorySpec

__all__ = ["Cache", "Memory", "MemorySpec", "Reading", "RecurrentGPT2", "RecurrentGPT2Config", "State"]
