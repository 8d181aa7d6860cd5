"""Encoders are transformers' own models, window by window, and a question's windows are scored together."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch
from pydantic import BaseModel
from safetensors.torch import load_file, save_file
from transformers import CONFIG_MAPPING, AutoModel, AutoModelForQuestionAnswering
from transformers.dynamic_module_utils import get_imports

from recur_tune.bptt.chain import Chain
from recur_tune.bptt.plan import Plan
from recur_tune.common.errors import UserError
from recur_tune.common.windowing import ENDS, NOT_SCORED, STARTS
from recur_tune.data.batches import WindowBatch
from recur_tune.models.encoder import WindowedEncoder
from recur_tune.models.pretrained import load_base, load_model, save_model
from recur_tune.models.trained import Trained
from recur_tune.ops.quantised import dequantised
from recur_tune.recurrences.pooled.spec import PooledSpec
from recur_tune.recurrences.registry import settings_of
from recur_tune.recurrences.tokens.spec import TokensSpec
from tests.tasks import ENCODERS, FACTS_WORDS, small_encoder, word_tokenizer

PAD = 1
SPECS = {
    "none": None,
    "one layer": PooledSpec(l_ins=2, width=8, depth=1, skip=True),
    "all layers": PooledSpec(l_ins="all", embeddings=2, width=8, depth=1),
    "tokens": TokensSpec(state_tokens=3, ring=2),
}
CLOSE = {"rtol": 1e-9, "atol": 1e-9}
families = pytest.mark.parametrize("family", ENCODERS)
recurrent = pytest.mark.parametrize("kind", ["all layers", "tokens"])


def encoder(family: str, spec: BaseModel | None = None) -> WindowedEncoder:
    """In double precision; every weight is random, biases and norms too."""
    model = small_encoder(family, spec).double()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    return model


def some_tokens(*shape: int) -> torch.Tensor:
    return torch.randint(3, 61, shape)


@families
def test_scores_and_gradients_are_transformers_own(family: str) -> None:
    model, tokens = encoder(family), some_tokens(2, 12)
    tokens[1, 8:] = PAD
    settings = {k: v for k, v in model.config.to_dict().items() if k not in ("recurrence", "window", "overlap")}
    config = CONFIG_MAPPING[family](**{k: v for k, v in settings.items() if k != "model_type"})
    theirs = AutoModelForQuestionAnswering.from_config(config, attn_implementation="eager").double().eval()
    assert not theirs.load_state_dict(model.state_dict(), strict=False).missing_keys
    there = tokens != PAD
    ours, expected = model(tokens), theirs(input_ids=tokens, attention_mask=there.long())
    for one, other in ((ours.start_logits, expected.start_logits), (ours.end_logits, expected.end_logits)):
        torch.testing.assert_close(one[there], other[there], **CLOSE)
    weight = torch.randn_like(ours.start_logits) * there
    (ours.start_logits * weight).sum().backward()
    (expected.start_logits * weight).sum().backward()
    found = dict(theirs.named_parameters())
    for name, parameter in model.named_parameters():
        if not name.startswith("answer_kind"):
            torch.testing.assert_close(parameter.grad, found[name].grad, **CLOSE)


def mixed_batch() -> WindowBatch:
    """Questions begin in mid-batch: of four windows, of two and two, of one, two and none; one is a yes, one a no."""
    inputs = some_tokens(4, 3, 10)
    inputs[3, 0, 6:] = inputs[1, 1, 5:] = inputs[3, 2, 1:] = PAD
    fresh = torch.tensor([[1, 1, 1], [0, 0, 1], [0, 1, 0], [0, 0, 1]]).bool()
    targets = torch.zeros_like(inputs)
    targets[:, :, 1:3] = targets[inputs == PAD] = NOT_SCORED
    targets[:, :, 0] = torch.tensor([[0, 1, 0], [0, 1, 2], [0, 0, 2], [0, 0, NOT_SCORED]])
    targets[1, 0, 4], targets[1, 0, 5] = STARTS, ENDS  # the same answer stands in two windows
    targets[2, 0, 4] = targets[0, 2, 5] = STARTS | ENDS
    targets[3, 1, 7], targets[3, 1, 9] = STARTS, ENDS
    return WindowBatch(inputs, targets, fresh, ("all", "some", "some", "some"), scored=1, step_scored=1)


def by_hand(model: WindowedEncoder, batch: WindowBatch) -> torch.Tensor:
    """The summed loss, every question read alone by autograd and scored as the definition says."""
    loss = torch.zeros((), dtype=torch.float64)
    for row in range(batch.inputs_WBT.shape[1]):
        state, questions = None, []
        for window in range(batch.inputs_WBT.shape[0]):
            if batch.fresh_WB[window, row]:
                state = None
                questions.append(([], []))
            reading = model.read(batch.inputs_WBT[window, row : row + 1], state)
            state = reading.state
            questions[-1][0].append(reading.top_BTK[0])
            questions[-1][1].append(batch.targets_WBT[window, row])
        for tops, targets in questions:
            kind = int(targets[0][0])
            if kind == NOT_SCORED:
                continue
            first_K = torch.stack([top_TK[0] for top_TK in tops]).amax(0)
            loss = loss - model.answer_kind(first_K).log_softmax(-1)[kind]
            if kind == 0:
                target_N = torch.cat([target_T[1:] for target_T in targets])
                log_p_N2 = model.qa_outputs(torch.cat([top_TK[1:] for top_TK in tops]))[target_N >= 0].log_softmax(0)
                target_N = target_N[target_N >= 0]
                for column, mark in enumerate((STARTS, ENDS)):
                    loss = loss - log_p_N2[(target_N & mark) > 0, column].logsumexp(0)
    return loss


@pytest.mark.parametrize("kind", SPECS)
@families
def test_a_chains_gradients_are_autograds_under_every_plan(family: str, kind: str) -> None:
    model, batch = encoder(family, SPECS[kind]), mixed_batch()
    expected = by_hand(model, batch)
    grad_parameter = torch.autograd.grad(expected, list(model.parameters()))
    for kept, uniform in ((1, False), (2, False), (4, False), (2, True)):
        chain = Chain(model, Plan(kept))
        chain.uniform = uniform  # as for a CUDA graph
        loss, gradients, _ = chain.differentiate(batch)
        torch.testing.assert_close(loss, expected.detach(), **CLOSE)
        for ours, theirs in zip(gradients, grad_parameter, strict=True):
            torch.testing.assert_close(ours, theirs, **CLOSE)


@recurrent
@families
def test_a_frozen_body_leaves_the_recurrence_and_the_heads_to_learn(family: str, kind: str) -> None:
    model, batch = encoder(family, SPECS[kind]), mixed_batch()
    all_gradients = Chain(model, Plan(2)).differentiate(batch).gradients
    expected = dict(zip((name for name, _ in model.named_parameters()), all_gradients, strict=True))
    model.freeze_body()
    gradients = Chain(model, Plan(2)).differentiate(batch).gradients
    trained = [name for name, parameter in model.named_parameters() if parameter.requires_grad]
    assert {name.partition(".")[0] for name in trained} == {"recurrence", "qa_outputs", "answer_kind"}
    for name, gradient in zip(trained, gradients, strict=True):
        torch.testing.assert_close(gradient, expected[name], **CLOSE)


@families
def test_beside_a_quantised_body_gradients_are_those_beside_its_dequantised_weights(family: str) -> None:
    model, batch = encoder(family, SPECS["tokens"]), mixed_batch()
    Trained("recurrence", bits=4).apply(model)
    found = Chain(model, Plan(2)).differentiate(batch)
    ours = [found.loss.clone(), *(one.clone() for one in found.gradients)]
    for module in (module for projection in model.body.projections for module in projection.modules):
        module.weight = torch.nn.Parameter(dequantised([module.weight]), requires_grad=False)
    whole = Chain(model, Plan(2)).differentiate(batch)
    assert len(ours) > 1
    torch.testing.assert_close(ours, [whole.loss, *whole.gradients], **CLOSE)


@recurrent
@families
@torch.no_grad()
def test_no_position_sees_padding(family: str, kind: str) -> None:
    model, tokens = encoder(family, SPECS[kind]), some_tokens(2, 9)
    state = model.read(some_tokens(2, 7)).state
    padded = torch.cat([tokens, torch.full((2, 5), PAD)], dim=1)
    plain, longer = model.read(tokens, state), model.read(padded, state)
    if kind == "tokens" and family == "mpnet":  # rows behind the window stand further off there
        torch.testing.assert_close(longer.top_BTK[:, :9], plain.top_BTK, **CLOSE)
        return
    torch.testing.assert_close((longer.top_BTK[:, :9], longer.state), (plain.top_BTK, plain.state), **CLOSE)


@recurrent
@families
@torch.no_grad()
def test_a_fresh_row_has_no_state_and_its_neighbour_sees_it(family: str, kind: str) -> None:
    model, tokens = encoder(family, SPECS[kind]), some_tokens(3, 12)
    state = model.read(some_tokens(3, 9)).state
    mixed = model.read(tokens, state, fresh_B=torch.tensor([True, False, True])).top_BTK
    without, seeing = model.read(tokens).top_BTK, model.read(tokens, state).top_BTK
    assert not torch.allclose(without, seeing, atol=1e-3)
    torch.testing.assert_close(mixed, torch.stack([without[0], seeing[1], without[2]]), **CLOSE)
    # Whether a window leaves a state does not change its outputs.
    torch.testing.assert_close(model.read(tokens, state, leave_state=False).top_BTK, seeing, **CLOSE)


@families
def test_the_shape_counts_every_weight(family: str) -> None:
    model = small_encoder(family)
    assert model.config.shape.parameters == sum(parameter.numel() for parameter in model.parameters())
    tokens = some_tokens(1, model.config.shape.context)
    assert model(tokens).start_logits.shape == tokens.shape
    with pytest.raises(IndexError):
        model(some_tokens(1, model.config.shape.context + 1))


@pytest.mark.parametrize("kind", ["none", "all layers"])
@families
@torch.no_grad()
def test_a_saved_encoder_is_the_same_and_a_plain_one_opens_anywhere(family: str, kind: str, tmp_path: Path) -> None:
    model, tokens = small_encoder(family, SPECS[kind]), some_tokens(2, 12)
    save_model(model, word_tokenizer(FACTS_WORDS), tmp_path)
    loaded, _ = load_model(tmp_path)
    assert type(loaded) is type(model)
    for name, parameter in model.named_parameters():
        assert torch.equal(loaded.get_parameter(name), parameter)
    assert torch.equal(loaded.eval()(tokens).start_logits, model(tokens).start_logits)
    files = {file.stem: file for file in tmp_path.glob("*.py")}
    assert {"models_encoder", "models_windowed"} <= files.keys() or kind == "none"
    for file in files.values():
        assert set(get_imports(file)) - sys.stdlib_module_names <= {"torch", "transformers", "numpy"}
    if kind == "none":
        theirs = AutoModelForQuestionAnswering.from_pretrained(tmp_path).eval()
        torch.testing.assert_close(theirs(tokens).end_logits, model(tokens).end_logits)


@families
def test_a_base_without_heads_gets_some_and_keeps_the_rest(family: str, tmp_path: Path) -> None:
    bare = CONFIG_MAPPING[family](
        **{k: v for k, v in small_encoder(family).config.to_dict().items() if k != "model_type"}
    )
    base = AutoModel.from_config(bare)
    base.save_pretrained(tmp_path)
    model = load_base(str(tmp_path), SPECS["all layers"], dropout=0.25)
    weights = dict(model.named_parameters())
    for name, parameter in base.named_parameters():
        if "pooler" not in name:
            assert torch.equal(weights[f"{family}.{name}"], parameter)
    assert model.body.blocks[0].attention_dropout == model.body.embedding_dropout.p == 0.25
    assert weights["qa_outputs.weight"].std() > 0 and weights["recurrence.network.0.weight"].std() > 0


@pytest.mark.parametrize("after", SPECS)
@pytest.mark.parametrize("before", SPECS)
def test_a_run_as_base_keeps_its_heads_and_the_same_recurrence(before: str, after: str, tmp_path: Path) -> None:
    run = encoder("roberta", SPECS[before]).float()
    save_model(run, word_tokenizer(FACTS_WORDS), tmp_path)
    model = load_base(str(tmp_path), SPECS[after], dropout=0.25)
    known, weights = dict(run.named_parameters()), dict(model.named_parameters())
    assert {"qa_outputs.bias", "answer_kind.weight"} <= weights.keys()
    for name, parameter in weights.items():
        if before == after or not name.startswith("recurrence."):
            assert torch.equal(parameter, known[name])
        else:
            assert name not in known or not torch.equal(parameter, known[name])
    assert model.config.recurrence == settings_of(SPECS[after])
    assert model.body.blocks[0].attention_dropout == 0.25
    model.read(some_tokens(1, 12))


def test_an_encoder_that_lost_a_weight_is_refused_and_only_a_bases_heads_may_be_new(tmp_path: Path) -> None:
    save_model(small_encoder("bert"), word_tokenizer(FACTS_WORDS), tmp_path)
    weights = load_file(tmp_path / "model.safetensors")
    del weights["answer_kind.weight"]
    save_file(weights, tmp_path / "model.safetensors", metadata={"format": "pt"})
    assert load_base(str(tmp_path), None).get_parameter("answer_kind.weight").std() > 0
    with pytest.raises(UserError, match=rf"base: {tmp_path} lacks answer_kind\.weight"):
        load_model(tmp_path)
    del weights["bert.embeddings.LayerNorm.weight"]
    save_file(weights, tmp_path / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(UserError, match=rf"base: {tmp_path} lacks bert\.embeddings\.LayerNorm\.weight"):
        load_base(str(tmp_path), SPECS["all layers"])
