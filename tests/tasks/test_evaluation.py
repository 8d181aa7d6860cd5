"""Evaluation: closed forms, and equality with scoring by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from recur_tune.common.windowing import BEGIN, END, SCORED_FROM, Windowing
from recur_tune.models import RecurrentGPT2
from recur_tune.recurrences.pooled.spec import PooledSpec
from recur_tune.tasks.language_modelling.evaluation import evaluate, few_side_by_side
from tests.conftest import small_model
from tests.training.runs import VOCABULARY, split_of


@torch.no_grad()
def by_hand(model: RecurrentGPT2, windowing: Windowing, tokens: np.ndarray) -> list[float]:
    """Negative log-likelihoods of one document's tokens, a window after another, one document at a time."""
    losses, state = [], None
    document = torch.from_numpy(tokens)
    for window in windowing.cut(0, len(tokens) - 1):
        begin, end = window[BEGIN], window[END]
        reading = model.read(document[None, begin:end], state)
        state = reading.state
        log_p = model.logits(reading.top_BTK)[0].log_softmax(-1)
        for position in range(window[SCORED_FROM], end):
            losses.append(-float(log_p[position - begin, document[position + 1]]))
    return losses


@pytest.mark.parametrize(
    "memory", [None, PooledSpec(width=16, depth=1), PooledSpec(width=16, l_ins="all", embeddings=2)]
)
@pytest.mark.parametrize("windowing", [Windowing(8, 0), Windowing(8, 3), Windowing(32, 31)])
def test_it_equals_reading_each_document_alone(memory: PooledSpec | None, windowing: Windowing) -> None:
    model, lengths = small_model(memory), [70, 3, 2, 1, 41, 9]
    split = split_of(lengths)
    evaluation = evaluate(model, split, windowing, batch_size=3)
    expected = [
        by_hand(model, windowing, split.tokens[begin : end + 1]) for begin, end in split.document_inputs()
    ]  # fmt: skip
    assert evaluation.document_nll == pytest.approx([sum(losses) for losses in expected], rel=1e-5)
    assert evaluation.tokens == sum(length - 1 for length in lengths)
    assert evaluation.nll == pytest.approx(sum(map(sum, expected)), rel=1e-5)


@pytest.mark.parametrize("memory", [None, PooledSpec(width=16, depth=1)])
def test_the_number_of_lanes_changes_nothing(memory: PooledSpec | None) -> None:
    model, split = small_model(memory), split_of([50, 20, 33, 8, 64])
    results = [evaluate(model, split, Windowing(8, 2), batch_size=rows) for rows in (1, 2, 5, 16)]
    for result in results[1:]:
        assert result.document_nll == pytest.approx(results[0].document_nll, rel=1e-5)
        assert result.correct == results[0].correct
        assert result.loss_by_position == pytest.approx(results[0].loss_by_position, rel=1e-4)
        assert result.loss_by_depth == pytest.approx(results[0].loss_by_depth, rel=1e-4)


def test_a_model_that_knows_nothing_has_the_perplexity_of_its_vocabulary() -> None:
    model = small_model()
    torch.nn.init.zeros_(model.transformer.wte.weight)  # and with it the output, which is tied
    split = split_of([90, 40])
    evaluation = evaluate(model, split, Windowing(16, 4))
    metrics = evaluation.metrics()
    assert [*metrics][:2] == ["token_perplexity", "perplexity"], "what every search compares comes first"
    assert metrics["token_perplexity"] == pytest.approx(VOCABULARY, rel=1e-5)
    assert metrics["loss"] == pytest.approx(math.log(VOCABULARY), rel=1e-5)
    # 128 of 130 tokens are scored; each is two bytes, and a word begins in every third.
    words = sum(1 for token in range(130) if token % 3 == 0 and token not in (0, 90))
    assert evaluation.document_bytes == [2 * 89, 2 * 39]
    assert sum(evaluation.document_words) == words
    assert metrics["bits_per_byte"] == pytest.approx(math.log2(VOCABULARY) / 2, rel=1e-5)
    assert metrics["perplexity"] == pytest.approx(VOCABULARY ** (128 / words), rel=1e-4)


def test_loss_by_position_and_by_depth_are_means_over_what_was_scored_there() -> None:
    model, split, windowing = small_model(PooledSpec(width=16)), split_of([30]), Windowing(8, 2)
    evaluation = evaluate(model, split, windowing)
    losses = iter(by_hand(model, windowing, split.tokens))
    position: dict[int, list[float]] = {}
    depth: dict[int, list[float]] = {}
    for number, (begin, end, scored_from) in enumerate(windowing.cut(0, 29)):
        for place in range(scored_from, end):
            loss = next(losses)
            position.setdefault(place - begin, []).append(loss)
            depth.setdefault(number, []).append(loss)
    assert evaluation.loss_by_position == pytest.approx([float(np.mean(position[p])) for p in range(8)], rel=1e-5)
    assert evaluation.loss_by_depth == pytest.approx([float(np.mean(depth[d])) for d in sorted(depth)], rel=1e-5)


def test_more_overlap_gives_a_plain_model_more_context() -> None:
    model = small_model()
    split = split_of([200])
    seen = torch.tensor(split.tokens[None, 100:132])
    full = F.cross_entropy(model(seen).logits[0, -1], torch.tensor(split.tokens[132])).item()
    evaluation = evaluate(model, split.head(133), Windowing(32, 31))
    short = evaluate(model, split.head(132), Windowing(32, 31))
    assert evaluation.nll - short.nll == pytest.approx(full, rel=1e-3)


def test_the_model_is_left_in_the_mode_it_was_in() -> None:
    model = small_model().train()
    evaluate(model, split_of([20]), Windowing(8))
    assert model.training


@torch.no_grad()
def test_another_documents_state_is_that_of_the_lane_before() -> None:
    """Two documents of three windows each: each is read with what the other's window before left."""
    model, split = small_model(PooledSpec(width=16, depth=1)), split_of([25, 25])
    documents = [torch.from_numpy(split.tokens[begin:end].astype(np.int64)) for begin, end in ((0, 25), (25, 50))]
    states: list[torch.Tensor | None] = [None, None]
    expected = [0.0, 0.0]
    for first in (0, 8, 16):
        readings = [
            model.read(document[None, first : first + 8], state)
            for document, state in zip(documents, states, strict=True)
        ]
        for at, (document, reading) in enumerate(zip(documents, readings, strict=True)):
            log_p = model.logits(reading.top_BTK)[0].log_softmax(-1)
            expected[at] -= float(log_p[torch.arange(8), document[first + 1 : first + 9]].sum())
        states = [readings[1].state, readings[0].state]
    handed = evaluate(model, split, Windowing(8), batch_size=2, given="other")
    assert handed.document_nll == pytest.approx(expected, rel=1e-5)
    assert evaluate(model, split, Windowing(8), batch_size=2).document_nll != pytest.approx(expected, rel=1e-3)


def test_a_lane_that_ran_dry_hands_on_the_last_state_that_it_had() -> None:
    model, lengths = small_model(PooledSpec(width=16, depth=1)), [65, 9]
    evaluation = evaluate(model, split_of(lengths), Windowing(8), batch_size=2, given="other")
    split = split_of(lengths)
    short = torch.from_numpy(split.tokens[65:74].astype(np.int64))
    long = torch.from_numpy(split.tokens[:65].astype(np.int64))
    with torch.no_grad():
        lasting, nll = model.read(short[None, :8]).state, 0.0
        for first in range(0, 64, 8):
            reading = model.read(long[None, first : first + 8], lasting if first else None)
            log_p = model.logits(reading.top_BTK)[0].log_softmax(-1)
            nll -= float(log_p[torch.arange(8), long[first + 1 : first + 9]].sum())
    assert evaluation.document_nll[0] == pytest.approx(nll, rel=1e-5)


def test_without_any_state_every_window_is_a_documents_first() -> None:
    model, split = small_model(PooledSpec(width=16, depth=1)), split_of([50, 33])
    plain = small_model()
    plain.load_state_dict(model.state_dict(), strict=False)
    none = evaluate(model, split, Windowing(8, 2), batch_size=2, given="none")
    assert none.document_nll == pytest.approx(evaluate(plain, split, Windowing(8, 2)).document_nll, rel=1e-5)


def test_the_remark_on_empty_rows_never_advises_what_was_done() -> None:
    windowing = Windowing(8, 0)
    whole = split_of([12_000])
    (remark,) = few_side_by_side(whole, windowing, 16)
    assert remark.startswith("1 document kept 1 of 16 rows busy") and "`--sample 100k`" in remark
    for sample in (whole.sample(11_000), split_of([4_000, 4_000]).sample(5_000)):
        (remark,) = few_side_by_side(sample, windowing, 16)
        assert remark.startswith("the sample kept") and "a larger --sample" in remark and "100k" not in remark
        assert "stretches of documents" in evaluate(small_model(None), sample.head(40), windowing).counts()
