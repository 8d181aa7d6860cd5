"""MPNet: an encoder with learned positions, and a relative position bias that all layers share."""

from __future__ import annotations

from transformers import MPNetConfig, MPNetModel, MPNetPreTrainedModel

from recur_tune.common.shape import first_place
from recur_tune.models.bodies.bert import encoder_block
from recur_tune.models.encoder import EncoderBody, WindowedEncoder
from recur_tune.models.windowed import WindowedConfig
from recur_tune.ops.body import Block, Module


class RecurrentMPNetConfig(WindowedConfig, MPNetConfig):
    """MPNet's configuration, and how its windows are connected."""

    model_type = "recurrent_mpnet"


class RecurrentMPNet(WindowedEncoder, MPNetPreTrainedModel):
    """A pretrained MPNet and the recurrence that connects its windows."""

    config_class = RecurrentMPNetConfig

    def __init__(self, config: RecurrentMPNetConfig) -> None:
        super().__init__(config)
        self.mpnet = MPNetModel(config, add_pooling_layer=False)
        self.add_heads()
        self.add_recurrence()
        self.post_init()

    def find_body(self) -> EncoderBody:
        """MPNet's modules in their places."""
        own = self.mpnet
        return EncoderBody(
            tokens=own.embeddings.word_embeddings,
            positions=own.embeddings.position_embeddings,
            rotary=None,
            dropout=None,
            blocks=tuple(map(_block, own.encoder.layer)),
            final_norm=None,
            segments=None,
            embedding_norm=own.embeddings.LayerNorm,
            embedding_dropout=own.embeddings.dropout,
            first_place=first_place(self.config.to_dict()),
            distances=own.encoder,
        )


def _block(layer: Module) -> Block:
    attn = layer.attention.attn
    return encoder_block(layer, (attn.q, attn.k, attn.v), layer.attention, attn.o, attn)
