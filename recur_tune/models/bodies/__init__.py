"""Registry of bodies: transformers' own models, with a recurrence between their windows; one file a family.

A new one is a file in here and a line below, and a line in `recur_tune.common.shape`, which is read without torch.
"""

from __future__ import annotations

from recur_tune.models.bodies.bert import RecurrentBert, RecurrentRoberta
from recur_tune.models.bodies.gpt2 import RecurrentGPT2
from recur_tune.models.bodies.llama import RecurrentLlama, RecurrentMistral, RecurrentQwen2, RecurrentQwen3
from recur_tune.models.bodies.mpnet import RecurrentMPNet
from recur_tune.models.windowed import Windowed

# By transformers' `model_type`.
BODIES: dict[str, type[Windowed]] = {
    "gpt2": RecurrentGPT2,
    "llama": RecurrentLlama,
    "mistral": RecurrentMistral,
    "qwen2": RecurrentQwen2,
    "qwen3": RecurrentQwen3,
    "roberta": RecurrentRoberta,
    "bert": RecurrentBert,
    "mpnet": RecurrentMPNet,
}
