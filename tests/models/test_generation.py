"""A generated text is as likely as scoring it window by window says."""

from __future__ import annotations

from itertools import islice

import pytest
import torch

from recur_tune.common.windowing import BEGIN, END, SCORED_FROM, Windowing
from recur_tune.models import RecurrentGPT2
from recur_tune.models.generation import continue_texts, generate
from recur_tune.recurrences.pooled.spec import PooledSpec
from tests.conftest import small_model

LENGTH, POSITIONS = 50, 16
MODELS = {
    "none": None,
    "pooled": PooledSpec(),
    "all layers": PooledSpec(l_ins="all", embeddings=2, pooling="attention"),
}
WINDOWINGS = [Windowing(16), Windowing(10, 3), Windowing(4, 3)]


def a_model(recurrence: PooledSpec | None) -> RecurrentGPT2:
    """Its outputs are not its inputs' embeddings, else random weights would repeat one token for ever."""
    return small_model(recurrence, n_positions=POSITIONS, n_layer=2, tie_word_embeddings=False)


def generated(
    model: RecurrentGPT2, prompt: list[int], windowing: Windowing, **choices
) -> tuple[list[int], torch.Tensor]:
    choices.setdefault("generator", torch.Generator().manual_seed(0))
    pairs = list(islice(generate(model, prompt, windowing, **choices), LENGTH))
    return [token for token, _ in pairs], torch.tensor([log_p for _, log_p in pairs])


@torch.no_grad()
def scored(model: RecurrentGPT2, tokens: list[int], windowing: Windowing) -> torch.Tensor:
    """The log-probabilities of what follows every token but the last, read as evaluation reads a document."""
    rows, state = [], None
    for window in windowing.cut(0, len(tokens) - 1):
        reading = model.read(torch.tensor([tokens[window[BEGIN] : window[END]]]), state)
        state = reading.state
        log_p_TV = model.logits(reading.top_BTK[0]).log_softmax(-1)
        rows.append(log_p_TV[window[SCORED_FROM] - window[BEGIN] :])
    return torch.cat(rows)


@pytest.mark.parametrize("windowing", WINDOWINGS, ids=lambda w: f"{w.size}-{w.overlap}")
@pytest.mark.parametrize("recurrence", MODELS.values(), ids=MODELS)
def test_greedy_text_is_the_likeliest_and_as_likely_as_scoring_says(recurrence, windowing):
    model, prompt = a_model(recurrence), [3, 1, 4, 1, 5]
    tokens, log_p = generated(model, prompt, windowing, temperature=0)
    expected = scored(model, prompt + tokens, windowing)[len(prompt) - 1 :]
    assert tokens == expected.argmax(-1).tolist()
    torch.testing.assert_close(log_p, expected.amax(-1), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("windowing", WINDOWINGS, ids=lambda w: f"{w.size}-{w.overlap}")
@pytest.mark.parametrize("prompt_length", [1, 25])
def test_sampled_text_is_as_likely_as_scoring_says(prompt_length, windowing):
    model, prompt = a_model(PooledSpec()), list(range(prompt_length))
    tokens, log_p = generated(model, prompt, windowing, temperature=1.7)
    expected = scored(model, prompt + tokens, windowing)[prompt_length - 1 :]
    torch.testing.assert_close(log_p, expected.gather(1, torch.tensor(tokens)[:, None])[:, 0], rtol=1e-4, atol=1e-4)
    assert len(set(tokens)) > 10


def test_a_state_is_carried_from_window_to_window():
    model, windowing = a_model(PooledSpec()), Windowing(10)
    one, _ = generated(model, [1] * 10 + [5], windowing, temperature=0)
    other, _ = generated(model, [2] * 10 + [5], windowing, temperature=0)
    assert one != other  # the windows that are generated begin with the same token; only the state differs


def test_temperature_0_needs_no_generator_and_repeats_itself():
    model, windowing = a_model(PooledSpec()), Windowing(10, 3)
    once, _ = generated(model, [1, 2], windowing, temperature=0, generator=None)
    again, _ = generated(model, [1, 2], windowing, temperature=0, generator=torch.Generator().manual_seed(7))
    assert once == again


def test_top_1_is_greedy():
    model, windowing = a_model(PooledSpec()), Windowing(10, 3)
    greedy, log_p = generated(model, [1, 2], windowing, temperature=0)
    top, top_log_p = generated(model, [1, 2], windowing, temperature=1.3, top_k=1)
    assert top == greedy
    assert torch.equal(top_log_p, log_p)


def test_top_k_samples_among_the_k_likeliest_and_among_all_of_them():
    model, windowing, prompt = a_model(PooledSpec()), Windowing(10, 3), [1, 2]
    tokens, _ = generated(model, prompt, windowing, temperature=50.0, top_k=3)
    likeliest = scored(model, prompt + tokens, windowing)[1:].topk(3).indices
    ranks = (likeliest == torch.tensor(tokens)[:, None]).float().argmax(1)
    assert (likeliest == torch.tensor(tokens)[:, None]).any(1).all()
    assert set(ranks.tolist()) == {0, 1, 2}


def test_the_same_seed_samples_the_same_text_and_another_seed_another():
    model, windowing = a_model(PooledSpec()), Windowing(10)
    texts = [generated(model, [1], windowing, generator=torch.Generator().manual_seed(s))[0] for s in (0, 0, 1)]
    assert texts[0] == texts[1] != texts[2]


DRAWS = torch.rand(4, LENGTH, generator=torch.Generator().manual_seed(5), dtype=torch.float64)
PROMPTS = [[3, 1, 4, 1, 5], [9, 2], list(range(25)), [6, 5, 3, 5, 8, 9, 7]]


@pytest.mark.parametrize("windowing", WINDOWINGS[:2], ids=lambda w: f"{w.size}-{w.overlap}")
@pytest.mark.parametrize("recurrence", MODELS.values(), ids=MODELS)
def test_greedy_texts_side_by_side_are_those_of_one_alone(recurrence, windowing):
    model = a_model(recurrence)
    alone = [generated(model, prompt, windowing, temperature=0)[0] for prompt in PROMPTS]
    assert continue_texts(model, PROMPTS, windowing, DRAWS, temperature=0) == alone


@pytest.mark.parametrize("top_k", [None, 3])
def test_a_sampled_text_depends_on_its_own_draws_and_on_no_neighbour(top_k):
    model, windowing = a_model(PooledSpec()), Windowing(10, 3)
    together = continue_texts(model, PROMPTS, windowing, DRAWS, 1.3, top_k)
    for at, prompt in enumerate(PROMPTS):
        (alone,) = continue_texts(model, [prompt], windowing, DRAWS[at : at + 1], 1.3, top_k)
        assert alone == together[at]
    (other,) = continue_texts(model, PROMPTS[:1], windowing, 1 - DRAWS[:1], 1.3, top_k)
    assert other != together[0]


def test_a_token_is_where_its_draw_falls_among_the_cumulated_probabilities():
    model, windowing, prompt = a_model(PooledSpec()), Windowing(10, 3), PROMPTS[0]
    (tokens,) = continue_texts(model, [prompt], windowing, DRAWS[:1], 1.7)
    p_TV = (scored(model, prompt + tokens, windowing)[len(prompt) - 1 :].double() / 1.7).softmax(-1)
    up_to, place = p_TV.cumsum(-1), torch.tensor(tokens)[:, None]
    assert (up_to.gather(1, place)[:, 0] >= DRAWS[0] - 1e-5).all()
    assert ((up_to - p_TV).gather(1, place)[:, 0] <= DRAWS[0] + 1e-5).all()


def test_no_draw_takes_what_top_k_leaves_out():
    model, windowing = a_model(PooledSpec()), Windowing(10, 3)
    ends = torch.tensor([0.0, 1.0], dtype=torch.float64).repeat(LENGTH // 2)[None]
    (tokens,) = continue_texts(model, [[1, 2]], windowing, ends, 50.0, top_k=3)
    likeliest = scored(model, [1, 2, *tokens], windowing)[1:].topk(3).indices
    assert (likeliest == torch.tensor(tokens)[:, None]).any(1).all()
