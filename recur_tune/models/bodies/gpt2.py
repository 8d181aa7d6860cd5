"""GPT-2: LayerNorm, learned positions, one projection for queries, keys and values."""

from __future__ import annotations

from torch import nn
from transformers import GenerationMixin, GPT2Config, GPT2Model, GPT2PreTrainedModel
from transformers.models.gpt2.modeling_gpt2 import GPT2Block
from transformers.pytorch_utils import Conv1D

from recur_tune.models.decoder import WindowedDecoder
from recur_tune.models.windowed import WindowedConfig
from recur_tune.ops.body import Block, Body, Projection


class RecurrentGPT2Config(WindowedConfig, GPT2Config):
    """GPT-2's configuration, and how its windows are connected."""

    model_type = "recurrent_gpt2"


class RecurrentGPT2(WindowedDecoder, GPT2PreTrainedModel, GenerationMixin):
    """A pretrained GPT-2 and the recurrence that connects its windows."""

    config_class = RecurrentGPT2Config
    dropout_fields = ("resid_pdrop", "embd_pdrop", "attn_pdrop")
    _tied_weights_keys = {"lm_head.weight": "transformer.wte.weight"}

    def __init__(self, config: RecurrentGPT2Config) -> None:
        super().__init__(config)
        self.transformer = GPT2Model(config)
        self.lm_head = nn.Linear(config.n_embd, config.vocab_size, bias=False)
        self.add_recurrence()
        self.post_init()

    def find_body(self) -> Body:
        """GPT-2's modules in their places."""
        own = self.transformer
        return Body(own.wte, own.wpe, None, own.drop, tuple(map(_block, own.h)), own.ln_f)


def _block(block: GPT2Block) -> Block:
    attn, mlp = block.attn, block.mlp
    return Block(
        attention_norm=block.ln_1,
        qkv=_product(attn.c_attn),
        heads=attn.num_heads,
        key_value_heads=attn.num_heads,
        scaling=attn.scaling if hasattr(attn, "scaling") else None,
        attention_dropout=attn.attn_dropout.p,
        query_norm=None,
        key_norm=None,
        out=_product(attn.c_proj),
        mlp_norm=block.ln_2,
        up=_product(mlp.c_fc),
        down=_product(mlp.c_proj),
        activation=mlp.act,
        gated=False,
        dropouts=(attn.resid_dropout, mlp.dropout),
    )


def _product(module: Conv1D) -> Projection:
    return Projection((module,), inputs_first=True)
