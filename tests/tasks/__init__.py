"""What tests of answers share: a tokenizer of words and small encoders made on the spot."""

from __future__ import annotations

from collections.abc import Iterable

from pydantic import BaseModel
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import CONFIG_MAPPING, PreTrainedTokenizerFast

from recur_tune.data.corpora.facts import ASKED, FILLER, NAMES, NUMBERS
from recur_tune.models.encoder import WindowedEncoder
from recur_tune.models.pretrained import fresh_model, recurrent_config

# In the places where RoBERTa and MPNet have them; BERT's configuration is told.
SPECIAL = {"<s>": 0, "<pad>": 1, "</s>": 2, "<unk>": 3}
FACTS_WORDS = tuple(dict.fromkeys((*ASKED, *FILLER, *NAMES, *NUMBERS)))
ENCODERS = ("roberta", "bert", "mpnet")


def word_tokenizer(words: Iterable[str]) -> PreTrainedTokenizerFast:
    """Every word and every mark its own token, with the marks that encoders have."""
    vocabulary = SPECIAL | {word: number for number, word in enumerate(words, start=len(SPECIAL))}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, cls_token="<s>", sep_token="</s>", pad_token="<pad>", unk_token="<unk>"
    )


def small_encoder(family: str = "roberta", spec: BaseModel | None = None, **changes: object) -> WindowedEncoder:
    """A random encoder, in evaluation mode."""
    settings = {
        "vocab_size": 61, "hidden_size": 24, "num_hidden_layers": 3, "num_attention_heads": 2, "intermediate_size": 40,
        "max_position_embeddings": 34, "initializer_range": 0.2, "hidden_dropout_prob": 0.0,
        "attention_probs_dropout_prob": 0.0, "pad_token_id": 1,
    }  # fmt: skip
    config = CONFIG_MAPPING[family](**settings | changes)
    model = fresh_model(recurrent_config(config, spec, None)).eval()
    assert isinstance(model, WindowedEncoder)
    return model
