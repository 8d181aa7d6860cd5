"""Answers of a model: the best span of all windows, whoever reads beside it, and the loss that training has."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest
import torch

from recur_tune.models.encoder import WindowedEncoder
from recur_tune.models.span_loss import answer_losses, pooled_over_windows
from recur_tune.recurrences.pooled.spec import PooledSpec
from recur_tune.tasks.question_answering.evaluation import AnswerEvaluation, _best_spans, evaluate_answers
from recur_tune.tasks.question_answering.question_windows import question_batches
from tests.tasks import small_encoder
from tests.tasks.test_question_windows import layout_of, prepared, text_of

LONGEST = 3
LAYOUT = layout_of(room=7, overlap=2)


@pytest.fixture(scope="module")
def split(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Of one to five windows; some are a yes or a no, and of one the answer stands nowhere."""
    asked = [
        ("w1 w2", [text_of(n, 4 + 3 * n), text_of(3, n)], answer)
        for n, answer in enumerate(["w1 w2", "yes", "w3", "no", "w39", "w5 w6 w7"])
    ]
    return prepared(tmp_path_factory.mktemp("answering"), *asked)


def model_of(kind: str) -> WindowedEncoder:
    spec = None if kind == "plain" else PooledSpec(l_ins="all", width=8, depth=1)
    return small_encoder("roberta", spec, initializer_range=0.5)


def answered(model: WindowedEncoder, split: Any, batch_size: int = 4, **how: Any) -> AnswerEvaluation:
    return evaluate_answers(model, split, LAYOUT, LONGEST, batch_size, **how)


def known(found: AnswerEvaluation) -> list[float]:
    return [nll for nll in found.nll if nll is not None]


@torch.no_grad()
def by_hand(model: WindowedEncoder, split: Any) -> tuple[list[str], list[float]]:
    """Every question alone: all its spans tried one by one, and training's own loss."""
    answers, losses = [], []
    for question in split.chosen:
        table = LAYOUT.cut(split, int(question))
        batch = LAYOUT.gather(split, table[:, None])
        state, tops = None, []
        for tokens in batch.inputs_WBT:
            reading = model.read(tokens, state)
            state = reading.state
            tops.append(reading.top_BTK)
        top_WBTK = torch.stack(tops)
        spans_WBT2 = model.qa_outputs(top_WBTK)
        kinds_Q3 = model.answer_kind(pooled_over_windows(top_WBTK[:, :, 0], batch.fresh_WB))
        losses.append(float(answer_losses(spans_WBT2, kinds_Q3, batch.targets_WBT, batch.fresh_WB)[0]))
        begin = LAYOUT.text_begins(split, int(question))
        best: tuple[float, str] = (-1e30, "")
        for scores_T2, (first, end, *_) in zip(spans_WBT2[:, 0], table.tolist(), strict=True):
            for one, other in itertools.combinations_with_replacement(range(end - first), 2):
                if other - one < LONGEST:
                    score = float(scores_T2[begin + one, 0] + scores_T2[begin + other, 1])
                    best = max(best, (score, split.text_between(first + one, first + other)))
        answers.append([best[1], "yes", "no"][int(kinds_Q3[0].argmax())])
    return answers, losses


@pytest.mark.parametrize("kind", ["plain", "recurrent"])
def test_the_best_span_of_all_windows_is_the_answer(kind: str, split: Any) -> None:
    model = model_of(kind)
    answers, losses = by_hand(model, split)
    found = answered(model, split)
    assert found.answers == answers and found.names == split.names
    for ours, theirs, spans in zip(found.nll, losses, map(split.spans_of, split.chosen), strict=True):
        if ours is None:
            assert not len(spans)
        else:
            assert ours == pytest.approx(theirs, rel=1e-5)
    assert [ours is None for ours in found.nll].count(True) == 1


def test_no_span_is_longer_than_allowed_or_leaves_the_text() -> None:
    spans_BT2, targets_BT = torch.randn(50, 12, 2), torch.randint(-1, 2, (50, 12)).clamp(min=-1) * 100
    targets_BT[targets_BT > 0] = 0
    targets_BT[:, 5] = 0  # one position at least
    for scores_T2, targets_T, *found in zip(
        spans_BT2, targets_BT, *_best_spans(spans_BT2, targets_BT, LONGEST), strict=True
    ):
        text = [place for place in range(1, 12) if targets_T[place] == 0]
        tried = {
            (one, other): float(scores_T2[one, 0] + scores_T2[other, 1])
            for one, other in itertools.combinations_with_replacement(text, 2)
            if other - one < LONGEST
        }
        best = max(tried, key=tried.__getitem__)
        assert found == pytest.approx([tried[best], *best])


@pytest.mark.parametrize("kind", ["plain", "recurrent"])
def test_it_does_not_matter_how_many_are_read_side_by_side(kind: str, split: Any) -> None:
    model = model_of(kind)
    one, many = answered(model, split, batch_size=1), answered(model, split, batch_size=5)
    assert one.answers == many.answers and one.windows == many.windows and one.tokens == many.tokens
    assert known(one) == pytest.approx(known(many), rel=1e-5)


def test_the_state_is_the_questions_own_none_or_anothers(split: Any) -> None:
    model = model_of("recurrent")
    own, none, other = (known(answered(model, split, given=given)) for given in ("own", "none", "other"))
    assert own != pytest.approx(none) and own != pytest.approx(other)
    model.recurrence = None
    assert none == pytest.approx(known(answered(model, split)), rel=1e-5)


def test_metrics_are_means_and_a_report_has_every_answer(split: Any, tmp_path: Path) -> None:
    found = answered(model_of("plain"), split)
    metrics, report = found.metrics(), found.report()
    assert metrics["f1"] == pytest.approx(sum(found.f1) / 6) and metrics["f1_error"] == pytest.approx(1 - metrics["f1"])
    assert metrics["exact_match_error"] == pytest.approx(1 - sum(found.exact) / 6)
    assert [one["id"] for one in report["answers"]] == split.names and report["questions"] == 6
    assert found.tokens == sum(split.token_count(question) for question in range(6))
    assert found.windows == len(list(question_batches(split, LAYOUT, 1, carry_state=True)))
