"""The Llama family: RMSNorm, rotary position embeddings, grouped-query attention, a gated MLP.

Llama, SmolLM2, Mistral, Qwen2, Qwen2.5 and Qwen3 differ in biases, in norms over heads and in sizes, which are read
from their modules.

An inserted key has rotary position 0, that of the window's first token, where the rotation is the identity. Models of
this family use the first token as an attention sink. So an inserted key needs no rotation, moves no token of the
window, and a window without a state is the unmodified model.
"""

from __future__ import annotations

from torch import nn
from transformers import (
    GenerationMixin,
    LlamaConfig,
    LlamaModel,
    LlamaPreTrainedModel,
    MistralConfig,
    MistralModel,
    MistralPreTrainedModel,
    Qwen2Config,
    Qwen2Model,
    Qwen2PreTrainedModel,
    Qwen3Config,
    Qwen3Model,
    Qwen3PreTrainedModel,
)  # fmt: skip

from recur_tune.models.decoder import WindowedDecoder
from recur_tune.models.windowed import WindowedConfig
from recur_tune.ops.body import Block, Body, Module, Projection


class _Family(WindowedDecoder):
    """Common base of the four classes."""

    _tied_weights_keys = {"lm_head.weight": "model.embed_tokens.weight"}

    model: Module

    def _fill(self, model: Module) -> None:
        self.model = model
        self.lm_head = nn.Linear(self.config.hidden_size, self.config.vocab_size, bias=False)
        self.add_recurrence()
        self.post_init()

    def find_body(self) -> Body:
        """The family's modules in their places."""
        return body_of(self.model)


def body_of(model: Module, dropouts: tuple[Module, Module] | None = None) -> Body:
    """A model of the family as its modules; `dropouts` behind attention and behind the MLP are not its own."""
    blocks = tuple(_block(block, dropouts) for block in model.layers)
    return Body(model.embed_tokens, None, model.rotary_emb, None, blocks, model.norm)


def _block(block: Module, dropouts: tuple[Module, Module] | None) -> Block:
    attn, mlp = block.self_attn, block.mlp
    return Block(
        attention_norm=block.input_layernorm,
        qkv=Projection((attn.q_proj, attn.k_proj, attn.v_proj)),
        heads=attn.q_proj.out_features // attn.head_dim,
        key_value_heads=attn.k_proj.out_features // attn.head_dim,
        scaling=attn.scaling,
        attention_dropout=attn.attention_dropout,
        query_norm=getattr(attn, "q_norm", None),
        key_norm=getattr(attn, "k_norm", None),
        out=Projection((attn.o_proj,)),
        mlp_norm=block.post_attention_layernorm,
        up=Projection((mlp.gate_proj, mlp.up_proj)),
        down=Projection((mlp.down_proj,)),
        activation=mlp.act_fn,
        gated=True,
        dropouts=dropouts,
    )


class RecurrentLlamaConfig(WindowedConfig, LlamaConfig):
    """Llama's configuration, and how its windows are connected."""

    model_type = "recurrent_llama"


class RecurrentLlama(_Family, LlamaPreTrainedModel, GenerationMixin):
    """A pretrained Llama or SmolLM2 and the recurrence that connects its windows."""

    config_class = RecurrentLlamaConfig

    def __init__(self, config: RecurrentLlamaConfig) -> None:
        super().__init__(config)
        self._fill(LlamaModel(config))


class RecurrentMistralConfig(WindowedConfig, MistralConfig):
    """Mistral's configuration, and how its windows are connected."""

    model_type = "recurrent_mistral"


class RecurrentMistral(_Family, MistralPreTrainedModel, GenerationMixin):
    """A pretrained Mistral and the recurrence that connects its windows."""

    config_class = RecurrentMistralConfig

    def __init__(self, config: RecurrentMistralConfig) -> None:
        super().__init__(config)
        self._fill(MistralModel(config))


class RecurrentQwen2Config(WindowedConfig, Qwen2Config):
    """Qwen2's and Qwen2.5's configuration, and how its windows are connected."""

    model_type = "recurrent_qwen2"


class RecurrentQwen2(_Family, Qwen2PreTrainedModel, GenerationMixin):
    """A pretrained Qwen2 or Qwen2.5 and the recurrence that connects its windows."""

    config_class = RecurrentQwen2Config

    def __init__(self, config: RecurrentQwen2Config) -> None:
        super().__init__(config)
        self._fill(Qwen2Model(config))


class RecurrentQwen3Config(WindowedConfig, Qwen3Config):
    """Qwen3's configuration, and how its windows are connected."""

    model_type = "recurrent_qwen3"


class RecurrentQwen3(_Family, Qwen3PreTrainedModel, GenerationMixin):
    """A pretrained Qwen3 and the recurrence that connects its windows."""

    config_class = RecurrentQwen3Config

    def __init__(self, config: RecurrentQwen3Config) -> None:
        super().__init__(config)
        self._fill(Qwen3Model(config))
