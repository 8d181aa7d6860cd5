"""BERT and RoBERTa: encoders with learned positions and segments; they differ in their first position."""

from __future__ import annotations

from transformers import BertConfig, BertModel, BertPreTrainedModel, RobertaConfig, RobertaModel, RobertaPreTrainedModel

from recur_tune.common.shape import first_place
from recur_tune.models.encoder import EncoderBody, WindowedEncoder
from recur_tune.models.windowed import WindowedConfig
from recur_tune.ops.body import Block, Module, Projection


class RecurrentBertConfig(WindowedConfig, BertConfig):
    """BERT's configuration, and how its windows are connected."""

    model_type = "recurrent_bert"


class RecurrentBert(WindowedEncoder, BertPreTrainedModel):
    """A pretrained BERT and the recurrence that connects its windows."""

    config_class = RecurrentBertConfig

    def __init__(self, config: RecurrentBertConfig) -> None:
        super().__init__(config)
        self.bert = BertModel(config, add_pooling_layer=False)
        self.add_heads()
        self.add_recurrence()
        self.post_init()

    def find_body(self) -> EncoderBody:
        """BERT's modules in their places."""
        return _body(self.bert, self.config)


class RecurrentRobertaConfig(WindowedConfig, RobertaConfig):
    """RoBERTa's configuration, and how its windows are connected."""

    model_type = "recurrent_roberta"


class RecurrentRoberta(WindowedEncoder, RobertaPreTrainedModel):
    """A pretrained RoBERTa and the recurrence that connects its windows."""

    config_class = RecurrentRobertaConfig

    def __init__(self, config: RecurrentRobertaConfig) -> None:
        super().__init__(config)
        self.roberta = RobertaModel(config, add_pooling_layer=False)
        self.add_heads()
        self.add_recurrence()
        self.post_init()

    def find_body(self) -> EncoderBody:
        """RoBERTa's modules in their places."""
        return _body(self.roberta, self.config)


def _body(own: Module, config: WindowedConfig) -> EncoderBody:
    embeddings = own.embeddings
    return EncoderBody(
        tokens=embeddings.word_embeddings,
        positions=embeddings.position_embeddings,
        rotary=None,
        dropout=None,
        blocks=tuple(map(_block, own.encoder.layer)),
        final_norm=None,
        segments=embeddings.token_type_embeddings,
        embedding_norm=embeddings.LayerNorm,
        embedding_dropout=embeddings.dropout,
        first_place=first_place(config.to_dict()),
        distances=None,
    )


def _block(layer: Module) -> Block:
    attn = layer.attention.self
    return encoder_block(
        layer, (attn.query, attn.key, attn.value), layer.attention.output, layer.attention.output.dense, attn
    )


def encoder_block(layer: Module, qkv: tuple[Module, ...], behind: Module, out: Module, attn: Module) -> Block:
    """A block of these families: `behind` has the norm and the dropout behind attention."""
    return Block(
        attention_norm=behind.LayerNorm,
        qkv=Projection(qkv),
        heads=attn.num_attention_heads,
        key_value_heads=attn.num_attention_heads,
        scaling=attn.attention_head_size**-0.5,
        attention_dropout=attn.dropout.p,
        query_norm=None,
        key_norm=None,
        out=Projection((out,)),
        mlp_norm=layer.output.LayerNorm,
        up=Projection((layer.intermediate.dense,)),
        down=Projection((layer.output.dense,)),
        activation=layer.intermediate.intermediate_act_fn,
        gated=False,
        dropouts=(behind.dropout, layer.output.dropout),
    )
