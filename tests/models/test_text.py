"""Texts of any length through Hugging Face's interface are what reading window by window makes of them."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from transformers import DynamicCache

from recur_tune.common.windowing import BEGIN, END, SCORED_FROM, Windowing
from recur_tune.models import RecurrentGPT2
from recur_tune.recurrences.pooled.spec import PooledSpec
from recur_tune.tasks.language_modelling.evaluation import evaluate
from tests.conftest import small_model
from tests.models import hugging_face, some_tokens
from tests.training.runs import split_of

LENGTH = 45
MODELS = {
    "none": None,
    "pooled": PooledSpec(),
    "all layers": PooledSpec(l_ins="all", embeddings=2, pooling="attention"),
    "recent": PooledSpec(l_ins=1, embeddings=3, pooling="recent", skip=True),
}
PARTS = [[1] * LENGTH, [7, 1, 1, 36], [16, 16, 13], [44, 1]]
WINDOWINGS = [Windowing(16), Windowing(10, 3), Windowing(4, 3)]

every_model = pytest.mark.parametrize("recurrence", MODELS.values(), ids=MODELS)
every_windowing = pytest.mark.parametrize("windowing", WINDOWINGS, ids=lambda w: f"{w.size}-{w.overlap}")


def a_model(recurrence: PooledSpec | None, windowing: Windowing) -> RecurrentGPT2:
    """In double precision, for close comparisons."""
    window = {"window": windowing.size, "overlap": windowing.overlap}
    return small_model(recurrence, n_positions=16, tie_word_embeddings=False, **window).double()


def by_windows(model: RecurrentGPT2, tokens_BT: torch.Tensor, windowing: Windowing) -> torch.Tensor:
    """The logits after every token, as evaluation cuts a document: without any cache."""
    rows, state = [], None
    for window in windowing.cut(0, tokens_BT.shape[1]):
        reading = model.read(tokens_BT[:, window[BEGIN] : window[END]], state)
        state = reading.state
        rows.append(model.logits(reading.top_BTK[:, window[SCORED_FROM] - window[BEGIN] :]))
    return torch.cat(rows, dim=1)


@every_windowing
@every_model
@torch.no_grad()
def test_a_long_text_is_read_in_the_windows_of_the_configuration(recurrence, windowing):
    model, tokens = a_model(recurrence, windowing), some_tokens(2, LENGTH)
    torch.testing.assert_close(model(tokens).logits, by_windows(model, tokens, windowing), rtol=1e-12, atol=1e-12)


# A square in which every model, every windowing and every way to part a text meet each other.
@pytest.mark.parametrize(
    ("recurrence", "windowing", "parts"),
    [
        (recurrence, WINDOWINGS[(row + column) % 3], parts)
        for row, recurrence in enumerate(MODELS.values())
        for column, parts in enumerate(PARTS)
    ],
    ids=[f"{name}-{parts[:4]}" for name in MODELS for parts in PARTS],
)
@torch.no_grad()
def test_reading_on_from_a_past_is_reading_at_once(recurrence, windowing, parts):
    model, tokens = a_model(recurrence, windowing), some_tokens(2, LENGTH)
    past, logits = None, []
    for part in tokens.split(parts, dim=1):
        output = model(part, past_key_values=past, use_cache=True)
        past = output.past_key_values
        logits.append(output.logits)
    torch.testing.assert_close(torch.cat(logits, dim=1), model(tokens).logits, rtol=1e-9, atol=1e-9)
    assert past.get_seq_length() == LENGTH


@every_windowing
@torch.no_grad()
def test_the_loss_is_what_evaluation_says_of_the_document(windowing):
    model, split = a_model(PooledSpec(), windowing).float(), split_of([LENGTH])
    tokens = torch.from_numpy(split.tokens)[None]
    loss = model(tokens, labels=tokens).loss
    assert loss.item() == pytest.approx(evaluate(model, split, windowing).nll / (LENGTH - 1), rel=1e-5)


def test_loss_and_gradient_within_a_window_are_hugging_faces():
    model, tokens = a_model(PooledSpec(), Windowing(16)), some_tokens(2, 14)
    theirs, labels = hugging_face(model), tokens.masked_fill(torch.rand(tokens.shape) < 0.3, -100)
    losses = [one(tokens, labels=labels).loss for one in (model, theirs)]
    for loss in losses:
        loss.backward()
    torch.testing.assert_close(*[loss.double() for loss in losses], rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(model.transformer.wpe.weight.grad, theirs.transformer.wpe.weight.grad)


def test_what_is_learnt_reaches_back_over_windows():
    model, tokens = a_model(PooledSpec(), Windowing(16)), some_tokens(1, 40)
    labels = tokens.clone()
    labels[:, :-1] = -100
    model(tokens, labels=labels).loss.backward()
    assert model.transformer.wte.weight.grad[tokens[0, 0]].abs().max() > 0


@torch.no_grad()
def test_padding_on_the_right_changes_nothing_before_it():
    model, tokens = a_model(PooledSpec(), Windowing(10, 3)), some_tokens(1, 25)
    padded = F.pad(tokens, (0, 20))
    torch.testing.assert_close(model(padded).logits[:, :25], model(tokens).logits, rtol=1e-9, atol=1e-9)


@torch.no_grad()
def test_only_the_last_logits_are_made_where_no_more_are_wanted():
    model, tokens = a_model(PooledSpec(), Windowing(10, 3)), some_tokens(2, 25)
    assert torch.equal(model(tokens, logits_to_keep=4).logits, model(tokens).logits[:, -4:])


@torch.no_grad()
def test_the_cache_is_optional_and_outputs_may_be_a_tuple():
    model, tokens = a_model(PooledSpec(), Windowing(10)), some_tokens(1, 5)
    assert model(tokens).past_key_values.get_seq_length() == 5
    assert model(tokens, use_cache=False).past_key_values is None
    loss, logits = model(tokens, labels=tokens, use_cache=False, return_dict=False)
    assert torch.equal(logits, model(tokens).logits) and loss.ndim == 0


@every_windowing
@torch.no_grad()
def test_lanes_of_a_past_change_places(windowing):
    model, tokens, more = a_model(MODELS["all layers"], windowing), some_tokens(3, 25), some_tokens(3, 9)
    past, order = model(tokens).past_key_values, torch.tensor([2, 0, 0])
    past.reorder_cache(order)
    expected = model(torch.cat([tokens[order], more], dim=1)).logits[:, 25:]
    torch.testing.assert_close(model(more, past_key_values=past).logits, expected, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize(
    ("given", "word"),
    [
        ({"inputs_embeds": torch.zeros(1, 3, 24)}, "inputs_embeds"),
        ({"position_ids": torch.arange(3)[None]}, "position_ids"),
        ({"output_hidden_states": True}, "output_hidden_states"),
        ({"attention_mask": torch.tensor([[0, 1, 1]])}, "attention_mask"),
        ({"attention_mask": torch.tensor([[1, 1, 0]])}, "pad on the right"),
        ({"past_key_values": DynamicCache()}, "past_key_values: a DynamicCache"),
        ({"input_ids": torch.zeros(1, 0, dtype=torch.long)}, "no token"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
@torch.no_grad()
def test_what_windows_have_no_place_for_is_refused_in_a_sentence(given, word):
    model = small_model(PooledSpec())
    with pytest.raises(ValueError, match=word) as refused:
        model(**{"input_ids": torch.tensor([[1, 2, 3]])} | given)
    assert str(refused.value).count(".") == 1 and "\n" not in str(refused.value)


@torch.no_grad()
def test_a_past_of_other_lanes_is_refused():
    model = small_model(PooledSpec(), window=10)
    past = model(some_tokens(2, 4)).past_key_values
    with pytest.raises(ValueError, match="3 texts cannot go on from the past of 2"):
        model(some_tokens(3, 4), past_key_values=past)


def test_what_says_nothing_is_allowed():
    model, tokens = small_model(PooledSpec()), some_tokens(1, 4)
    given = {"attention_mask": torch.ones(1, 4), "position_ids": None, "output_attentions": False}
    assert torch.equal(model(tokens, **given).logits, model(tokens).logits)


@pytest.mark.parametrize(("window", "overlap", "word"), [(33, 0, "window: 33"), (8, 8, "overlap by 8")])
def test_windows_that_cannot_be_are_refused(window, overlap, word):
    model = small_model(PooledSpec(), window=window, overlap=overlap)
    with pytest.raises(ValueError, match=word):
        model(some_tokens(1, 4))


def test_the_default_window_is_as_long_as_the_models_context():
    assert small_model(PooledSpec()).config.windowing == Windowing(32)
