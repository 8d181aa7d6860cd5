"""The recurrent language model; it knows nothing of training."""

from transformers import AutoConfig, AutoModelForCausalLM

from recur_tune.model.cache import Cache, State, TextCache
from recur_tune.model.language_model import Reading, RecurrentGPT2, RecurrentGPT2Config
from recur_tune.model.recurrence import Memory
from recur_tune.recurrences.pooled import PooledSpec as MemorySpec

__all__ = ["Cache", "Memory", "MemorySpec", "Reading", "RecurrentGPT2", "RecurrentGPT2Config", "State", "TextCache"]

AutoConfig.register(RecurrentGPT2Config.model_type, RecurrentGPT2Config)
AutoModelForCausalLM.register(RecurrentGPT2Config, RecurrentGPT2)
