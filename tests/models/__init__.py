"""Tests of the model, and what tests of models and of chains of windows share."""

from __future__ import annotations

import numpy as np
import torch
from transformers import GPT2Config, GPT2LMHeadModel

from recur_tune.common.windowing import Windowing
from recur_tune.data.batches import WindowBatch
from recur_tune.models import RecurrentGPT2
from recur_tune.tasks.language_modelling.windows import gather
from tests.conftest import small_config

VOCABULARY = small_config().vocab_size


def some_tokens(*shape: int) -> torch.Tensor:
    """Random tokens of the small model's vocabulary."""
    return torch.randint(VOCABULARY, shape)


def hugging_face(model: RecurrentGPT2) -> GPT2LMHeadModel:
    """The plain GPT-2 with the same weights, in Hugging Face's own code and with its simplest attention."""
    ours = {"model_type", "recurrence", "window", "overlap"}
    settings = {key: value for key, value in model.config.to_dict().items() if key not in ours}
    plain = GPT2LMHeadModel(GPT2Config(**settings, attn_implementation="eager")).to(model.dtype)
    weights = {key: value for key, value in model.state_dict().items() if not key.startswith("recurrence.")}
    plain.load_state_dict(weights)
    return plain.eval()


def chain_batch(windowing: Windowing, documents: list[list[int]], windows: int) -> WindowBatch:
    """A batch of documents, one behind another; `documents` has the number of inputs of each, by batch row."""
    random, tokens = np.random.default_rng(0), []
    table_WB4 = np.zeros((windows, len(documents), 4), dtype=np.int64)
    table_WB4[..., 3] = 1  # an empty slot begins nothing and sees nothing
    for row, lengths in enumerate(documents):
        window = 0
        for inputs in lengths:
            begin = len(tokens)
            tokens += random.integers(VOCABULARY, size=inputs + 1).tolist()
            cut = windowing.cut(begin, begin + inputs)
            table_WB4[window : window + len(cut), row, :3] = cut
            table_WB4[window + 1 : window + len(cut), row, 3] = 0
            window += len(cut)
    return gather(np.array(tokens), table_WB4, windowing.size)


def full_batch(windows: int, batch_size: int, size: int) -> WindowBatch:
    """In every batch row one document that fills the chain."""
    return chain_batch(Windowing(size), [[windows * size]] * batch_size, windows)
