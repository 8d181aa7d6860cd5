"""Hugging Face's own `generate` writes in windows, one token a step, and writes what re-reading everything would."""

from __future__ import annotations

from itertools import islice

import pytest
import torch
from transformers import DynamicCache
from transformers.generation.streamers import BaseStreamer

from recur_tune.common.windowing import Windowing
from recur_tune.models import RecurrentGPT2, TextCache
from recur_tune.models.generation import generate
from recur_tune.recurrences.pooled.spec import PooledSpec
from tests.conftest import small_model
from tests.models import some_tokens
from tests.models.test_text import a_model, every_model, every_windowing

NEW = 25
OVERLAPPING = Windowing(10, 3)


def written(model: RecurrentGPT2, prompts: torch.Tensor, **choices: object) -> torch.Tensor:
    """What follows the prompts."""
    choices = {"max_new_tokens": NEW, "do_sample": False} | choices
    return model.generate(prompts, **choices)[:, prompts.shape[1] :]


@pytest.mark.parametrize("prompt_length", [1, 14])
@every_windowing
@every_model
def test_greedy_text_is_ours_and_the_likeliest_when_all_is_read_again(recurrence, windowing, prompt_length):
    model, prompt = a_model(recurrence, windowing), some_tokens(1, prompt_length)
    ours = [token for token, _ in islice(generate(model, prompt[0].tolist(), windowing, temperature=0), NEW)]
    text = model.generate(prompt, max_new_tokens=NEW, do_sample=False)
    assert text[0, prompt_length:].tolist() == ours
    assert model(text).logits[0, prompt_length - 1 : -1].argmax(-1).tolist() == ours
    assert len(set(ours)) > 1, "random weights that repeat themselves show nothing"


@torch.no_grad()
def test_its_scores_are_those_of_reading_all_again():
    model, prompt = a_model(PooledSpec(), OVERLAPPING), some_tokens(2, 14)
    choices = {"max_new_tokens": NEW, "do_sample": True, "return_dict_in_generate": True, "output_logits": True}
    output = model.generate(prompt, **choices)
    expected = model(output.sequences).logits[:, 13:-1].float()  # as Hugging Face has them
    torch.testing.assert_close(torch.stack(output.logits, dim=1), expected)


def test_without_a_past_it_writes_the_same():
    model, prompt = a_model(PooledSpec(), OVERLAPPING), some_tokens(2, 14)
    assert torch.equal(written(model, prompt, use_cache=False), written(model, prompt))


@every_windowing
def test_a_step_reads_one_token_and_a_new_window_its_overlap_again(windowing):
    model, prompt, reads = a_model(PooledSpec(), windowing), some_tokens(1, 23), []
    model.transformer.wte.register_forward_hook(lambda _m, args, _out: reads.append(args[0].shape[1]))
    written(model, prompt)
    inputs = 23 + NEW - 1  # the last token is not read
    windows = windowing.count(inputs)
    assert sum(reads) == inputs + (windows - 1) * windowing.overlap
    at_once = windowing.count(23)  # the prompt's windows
    assert set(reads[at_once:]) <= {1, windowing.overlap + 1}


@every_model
def test_prompts_side_by_side_are_prompts_alone(recurrence):
    model, prompts = a_model(recurrence, OVERLAPPING), some_tokens(3, 14)
    together = written(model, prompts, attention_mask=torch.ones_like(prompts))
    assert together.tolist() == [written(model, prompt[None])[0].tolist() for prompt in prompts]


def test_the_prompt_counts_beyond_its_window():
    model = a_model(PooledSpec(), Windowing(10))
    one, other = (written(model, torch.tensor([[first] * 10 + [5]])).tolist() for first in (1, 2))
    assert one != other  # what is written begins with the same token; only the state differs


def test_sampling_is_torchs_and_every_sequence_its_own():
    model, prompt, texts = a_model(PooledSpec(), OVERLAPPING), some_tokens(1, 14), []
    for seed in (0, 0, 1):
        torch.manual_seed(seed)
        sampled = written(model, prompt, do_sample=True, temperature=1.5, top_k=30, top_p=0.95, num_return_sequences=3)
        assert len({tuple(text) for text in sampled.tolist()}) == 3
        texts.append(sampled.tolist())
    assert texts[0] == texts[1] != texts[2]


def test_the_likeliest_alone_is_greedy():
    model, prompt = a_model(PooledSpec(), OVERLAPPING), some_tokens(2, 14)
    assert torch.equal(written(model, prompt, do_sample=True, top_k=1), written(model, prompt))


class Heard(BaseStreamer):
    """Listens, and nothing else."""

    def __init__(self) -> None:
        self.tokens: list[int] = []
        self.ended = False

    def put(self, value: torch.Tensor) -> None:
        self.tokens += value.flatten().tolist()

    def end(self) -> None:
        self.ended = True


def test_a_text_ends_where_it_says_so_and_a_streamer_hears_it():
    model, prompt, heard = a_model(PooledSpec(), OVERLAPPING), some_tokens(1, 14), Heard()
    whole = written(model, prompt)[0].tolist()
    end = whole[15]
    ended = written(model, prompt, eos_token_id=end, pad_token_id=0, streamer=heard)[0].tolist()
    assert ended == whole[: whole.index(end) + 1]
    assert heard.tokens == prompt[0].tolist() + ended and heard.ended


def test_beam_search_with_a_past_is_beam_search_without():
    model, prompts = a_model(PooledSpec(), OVERLAPPING), some_tokens(2, 14)
    beams = written(model, prompts, num_beams=3)
    assert torch.equal(beams, written(model, prompts, num_beams=3, use_cache=False))
    assert not torch.equal(beams, written(model, prompts))


@every_windowing
def test_a_text_goes_on_from_the_past_of_its_beginning(windowing):
    model, prompt = a_model(PooledSpec(), windowing), some_tokens(1, 14)
    choices = {"do_sample": False, "return_dict_in_generate": True}
    first = model.generate(prompt, max_new_tokens=15, **choices)
    assert isinstance(first.past_key_values, TextCache)
    assert first.past_key_values.get_seq_length() == 14 + 15 - 1
    rest = model.generate(
        first.sequences, past_key_values=first.past_key_values, max_new_tokens=NEW - 15, **choices
    ).sequences  # fmt: skip
    assert torch.equal(rest[:, 14:], written(model, prompt))


@pytest.mark.parametrize(
    ("given", "word"),
    [
        ({"attention_mask": torch.tensor([[0, 0, 1, 1], [1, 1, 1, 1]])}, "attention_mask"),
        ({"inputs_embeds": torch.zeros(2, 4, 24)}, "inputs_embeds"),
        ({"prompt_lookup_num_tokens": 2}, "assisted generation is not supported with stateful models"),
        ({"past_key_values": DynamicCache()}, "past_key_values"),
        ({"output_attentions": True, "return_dict_in_generate": True}, "output_attentions"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_windows_have_no_place_for_is_refused_in_a_sentence(given, word):
    prompts = torch.tensor([[1, 2, 3, 4], [5, 6, 7, 8]])
    with pytest.raises(ValueError, match=word):
        small_model(PooledSpec()).generate(prompts, max_new_tokens=3, **given)
