"""Forecasting: scores against a naive loop over every window, losses against autograd, and what is refused."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from pydantic import BaseModel

from recur_tune.bptt.chain import Chain
from recur_tune.bptt.plan import Plan
from recur_tune.common.errors import UserError
from recur_tune.common.parsing import parse
from recur_tune.common.windowing import Windowing
from recur_tune.config.base_shape import trial_settings, trial_shape
from recur_tune.config.fields import own_fields
from recur_tune.config.trial import TrialConfig
from recur_tune.models.pretrained import fresh_model, load_model, recurrent_config, save_model
from recur_tune.models.series import SeriesModel
from recur_tune.recurrences.cache.spec import CacheSpec
from recur_tune.recurrences.gated_delta.spec import GatedDeltaSpec
from recur_tune.recurrences.pooled.spec import PooledSpec
from recur_tune.recurrences.scores.spec import ScoresSpec
from recur_tune.tasks.forecasting.evaluation import evaluate_forecasts
from recur_tune.tasks.forecasting.series import SeriesSplit, prepare_series
from recur_tune.tasks.forecasting.spec import ForecastingSpec, patch_of
from recur_tune.tasks.forecasting.windows import Layout, SeriesStream, lanes
from recur_tune.training.checkpoint import load_checkpoint, save_checkpoint
from recur_tune.training.setup import set_up, untrained
from tests.bptt.test_distributed import start
from tests.series import waves, write_series

HORIZON, PATCH, WINDOW = 5, 4, 12
STATES = {
    "cache": CacheSpec(cache_rows=4, cache_sinks=1),
    "pooled": PooledSpec(l_ins="all", width=8, depth=1),
    "gated_delta": GatedDeltaSpec(),
    "scores": ScoresSpec(score_heads=2),
}


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> str:
    values = waves(300, columns=3)
    values[230:233, 1] = np.nan
    return f"series:{write_series(tmp_path_factory.mktemp('series') / 'a.csv', values)}"


def config_of(corpus: str, **fields: Any) -> TrialConfig:
    usual = {
        "corpus": corpus, "horizon": HORIZON, "patch": PATCH, "window": WINDOW, "bptt_windows": 3, "batch": 2,
        "body_layers": 2, "body_width": 16, "body_heads": 2, "recurrence": "none", "dropout": 0.0,
    }  # fmt: skip
    return TrialConfig(**usual | fields)


def model_of(config: TrialConfig, spec: BaseModel | None = None) -> SeriesModel:
    """A model of large random weights in double precision, so that states and later values matter."""
    torch.manual_seed(0)
    model = fresh_model(recurrent_config(trial_settings(config), spec, 0.0))
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim > 1:
                parameter.normal_(0, 0.3)
    windowing = config.windowing.in_patches(model.config.shape.patch)
    model.config.window, model.config.overlap = windowing.size, windowing.overlap
    return model.double().eval()  # type: ignore[return-value]


def layout_of(config: TrialConfig) -> Layout:
    spec = config.task_spec
    assert isinstance(spec, ForecastingSpec)
    return Layout(config.windowing, patch_of(spec, config.window), with_calendar=spec.body == "informer")


def naive_errors(split: SeriesSplit, forecasts: dict[int, np.ndarray]) -> tuple[float, float]:
    """MSE and MAE by the definition: one number after the other."""
    errors = [
        forecasts[origin][column, ahead] - split.true_NC[origin + ahead, column]
        for origin in forecasts
        for column in range(len(split.names))
        for ahead in range(HORIZON)
        if not np.isnan(split.true_NC[origin + ahead, column])
    ]
    return float(np.mean(np.square(errors))), float(np.mean(np.abs(errors)))


def window_before(split: SeriesSplit, origin: int, body: str = "patches") -> torch.Tensor:
    """A window of every column; for Informer the horizon as zeros behind it, and the calendar of both."""
    window_SC = split.read_NC[origin - WINDOW : origin]
    if body == "informer":
        columns_SC = np.concatenate([window_SC, np.zeros((HORIZON, 3))])
        window_SC = np.concatenate([columns_SC, split.calendar_NF[origin - WINDOW : origin + HORIZON]], axis=1)
    return torch.from_numpy(window_SC.T.astype(np.float32))


@pytest.mark.parametrize("batch_size", [1, 7])
@pytest.mark.parametrize("body", ["patches", "informer", "dlinear"])
@torch.no_grad()
def test_scores_are_those_of_a_loop_over_every_window(body: str, batch_size: int, corpus: str) -> None:
    config = config_of(corpus, body=body)
    split, model = prepare_series(corpus, "test", HORIZON), model_of(config)
    forecasts = {}
    for origin in range(240, 300 - HORIZON + 1):
        values = window_before(split, origin, body)
        forecasts[origin] = model.forecast(model.read(values).top_BTK, values)[:, -1].numpy()
    found = evaluate_forecasts(model, split, layout_of(config), batch_size, "float32")
    mse, mae = naive_errors(split, forecasts)
    assert found.metrics() == pytest.approx({"mse": mse, "mae": mae, "loss": mse}, abs=1e-9)
    assert found.windows == len(forecasts) == 56
    at = 3 * HORIZON * 56
    assert found.report()["numbers"] == at == found.counts_HC.sum()
    by_column = [one["mse"] for one in found.report()["by_column"].values()]
    assert np.mean(by_column) == pytest.approx(mse) == np.mean([one["mse"] for one in found.report()["by_step"]])


@torch.no_grad()
def test_a_missing_truth_is_not_scored(corpus: str) -> None:
    config = config_of(corpus, body="dlinear")
    split, model = prepare_series(corpus, "validation", HORIZON), model_of(config)
    forecasts = {}
    for origin in split.origins(WINDOW):
        values = window_before(split, origin)
        forecasts[origin] = model.forecast(model.read(values).top_BTK, values)[:, -1].numpy()
    found = evaluate_forecasts(model, split, layout_of(config), 4, "float32")
    assert found.metrics()["mse"] == pytest.approx(naive_errors(split, forecasts)[0], abs=1e-9)
    assert found.counts_HC.sum() < 3 * HORIZON * found.windows and found.remarks == split.remarks


@pytest.mark.parametrize("overlap", [0, 4])
@pytest.mark.parametrize("name", STATES)
@torch.no_grad()
def test_a_state_goes_from_window_to_window_in_chronological_order(name: str, overlap: int, corpus: str) -> None:
    config = config_of(corpus, overlap=overlap)
    split, model = prepare_series(corpus, "test", HORIZON), model_of(config, STATES[name])
    stride, forecasts, plain = WINDOW - overlap, {}, {}
    for first in range(240, 240 + stride):
        state = None
        for origin in range(first, 300 - HORIZON + 1, stride):
            values = window_before(split, origin)
            reading = model.read(values, state)
            forecasts[origin] = model.forecast(reading.top_BTK, values)[:, -1].numpy()
            plain[origin] = model.forecast(model.read(values).top_BTK, values)[:, -1].numpy()
            state = reading.state
    for batch_size in (3, 16):
        found = evaluate_forecasts(model, split, layout_of(config), batch_size, "float32")
        assert found.metrics()["mse"] == pytest.approx(naive_errors(split, forecasts)[0], abs=1e-9)
    without = evaluate_forecasts(model, split, layout_of(config), 16, "float32", given="none")
    assert without.metrics()["mse"] == pytest.approx(naive_errors(split, plain)[0], abs=1e-9)
    assert without.metrics()["mse"] != pytest.approx(found.metrics()["mse"], rel=1e-3)


def test_beside_a_body_made_from_nothing_gates_begin_open(corpus: str) -> None:
    model, _ = untrained(config_of(corpus, recurrence="scores", score_heads=2), torch.device("cpu"))
    assert model.recurrence is not None and model.recurrence.gate_logits.std() > 0.01


def _validating(rank: int, workers: int, folder: Path) -> None:
    """One of several workers, whose running statistics have gone apart."""
    fields = {"body": "informer", "label_steps": 6, "validation_tokens": 20, "tokens": 1000}
    trainer, _ = set_up(config_of(f"series:{folder / 'a.csv'}", **fields))
    norms = [module for module in trainer.model.modules() if isinstance(module, torch.nn.BatchNorm1d)]
    for norm in norms:
        norm.running_mean += rank
    metrics = trainer._validate()
    torch.save([metrics, *(norm.running_mean for norm in norms)], folder / f"{rank}.pt")


def test_workers_score_with_the_same_running_statistics(tmp_path: Path) -> None:
    write_series(tmp_path / "a.csv", waves(300))
    start(2, tmp_path, _validating)
    one, other = (torch.load(tmp_path / f"{rank}.pt") for rank in range(2))
    assert len(one) > 1
    torch.testing.assert_close(one, other, rtol=0, atol=0)


@torch.no_grad()
def test_another_lanes_state_is_that_of_the_lane_before(corpus: str) -> None:
    config = config_of(corpus, overlap=0)
    split, model, forecasts = prepare_series(corpus, "test", HORIZON), model_of(config, STATES["cache"]), {}
    origins = lanes(split, config.windowing)
    given, left = [None] * len(origins), [None] * len(origins)
    for number in range(max(map(len, origins))):
        for at, lane in enumerate(origins):
            if number < len(lane):  # else it passes on what it left last
                values = window_before(split, lane[number])
                reading = model.read(values, given[at])
                forecasts[lane[number]] = model.forecast(reading.top_BTK, values)[:, -1].numpy()
                left[at] = reading.state
        given = [left[at - 1] for at in range(len(origins))]
    found = evaluate_forecasts(model, split, layout_of(config), 16, "float32", given="other")
    assert found.metrics()["mse"] == pytest.approx(naive_errors(split, forecasts)[0], abs=1e-9)


def test_a_chain_without_a_number_to_score_is_left_out(tmp_path: Path) -> None:
    values = waves(20 * WINDOW)
    values[8 * WINDOW : 8 * WINDOW + 2 * (WINDOW + HORIZON)] = np.nan
    corpus = f"series:{write_series(tmp_path / 'gap.csv', values)}"
    split = prepare_series(corpus, "train", HORIZON)
    layout = Layout(Windowing(WINDOW, 0), WINDOW)
    stream = SeriesStream(split, layout, 1, 1, seed=0, rank=0, workers=1)
    assert all(next(stream).step_losses > 0 for _ in range(200))
    with pytest.raises(UserError, match=f"^window: {split.end} time steps are behind none"):
        next(SeriesStream(split, Layout(Windowing(split.end, 0), split.end), 1, 1, seed=0, rank=0, workers=1))


@pytest.mark.parametrize("stride", [1, 4, 12])
def test_lanes_visit_every_origin_once(stride: int, corpus: str) -> None:
    split, windowing = prepare_series(corpus, "test", HORIZON), Windowing(WINDOW, WINDOW - stride)
    found = lanes(split, windowing)
    assert sorted(np.concatenate(found).tolist()) == list(split.origins(WINDOW)) and len(found) == stride
    assert all((np.diff(lane) == stride).all() for lane in found)
    few = lanes(split.sample(2 * split.rows), windowing)
    assert len(few) == min(2, stride) and {*map(tuple, few)} <= {*map(tuple, found)}


@pytest.mark.parametrize("kept", [1, 3])
@pytest.mark.parametrize("name", [None, "pooled", "gated_delta", "dlinear", "informer", "rsa"])
def test_the_loss_and_its_gradients_are_autograds(name: str | None, kept: int, corpus: str) -> None:
    config = config_of(
        corpus, body={"rsa": "informer", "informer": "informer", "dlinear": "dlinear"}.get(name, "patches")
    )
    split, model = (
        prepare_series(corpus, "train", HORIZON),
        model_of(config, STATES.get("scores" if name == "rsa" else name)),
    )
    stream = SeriesStream(split, layout_of(config), windows=3, batch=2, seed=0, rank=0, workers=1)
    batch = next(stream)
    found = Chain(model, Plan(kept)).differentiate(batch)
    state, losses = None, []
    for window in range(3):
        reading = model.read(batch.inputs_WBT[window], state)
        made = model.forecast(reading.top_BTK, batch.inputs_WBT[window])
        target = batch.targets_WBT[window].double()
        losses.append((made - target)[~target.isnan()].square().sum())
        state = reading.state
    loss = torch.stack(losses).sum()
    trained = [one for one in model.parameters() if one.requires_grad]
    expected = torch.autograd.grad(loss, trained, allow_unused=True)
    assert float(found.loss) == pytest.approx(float(loss.detach()), rel=1e-12)
    for own, one in zip(found.gradients, expected, strict=True):
        torch.testing.assert_close(own, torch.zeros_like(own) if one is None else one, rtol=1e-9, atol=1e-9)


def test_a_step_is_a_mean_over_the_numbers_that_are_scored(corpus: str) -> None:
    config = config_of(corpus, overlap=4)
    split = prepare_series(corpus, "validation", HORIZON)  # values are missing in it, and it ends behind them
    stream = SeriesStream(replace(split, begin=0), layout_of(config), windows=3, batch=2, seed=0, rank=0, workers=1)
    halves = [
        SeriesStream(replace(split, begin=0), layout_of(config), windows=3, batch=2, seed=0, rank=rank, workers=2)
        for rank in range(2)
    ]
    for _ in range(10):
        whole, parts = next(stream), [next(half) for half in halves]
        assert whole.mean_over == int((~whole.targets_WBT.isnan()).sum()) == parts[0].mean_over == parts[1].mean_over
        torch.testing.assert_close(torch.cat([part.inputs_WBT for part in parts], 1), whole.inputs_WBT)
        assert whole.step_scored <= config.step_tokens
    assert stream.epoch > 0


def test_every_training_row_is_read_and_none_behind_them(corpus: str) -> None:
    config = config_of(corpus)
    split = prepare_series(corpus, "train", HORIZON)
    numbered = replace(split, read_NC=np.arange(split.end)[:, None] + np.zeros(3))
    stream = SeriesStream(numbered, layout_of(config), windows=3, batch=1, seed=1, rank=0, workers=1)
    phases = set()
    for epoch in range(3):
        stream.seek(epoch, 0)
        read = np.zeros(split.end, dtype=int)
        while stream.epoch == epoch and stream.row < len(stream._rows):
            batch = next(stream)
            for window, fresh in zip(batch.inputs_WBT[:, 0], batch.fresh_WB[:, 0], strict=True):
                if window[1] > window[0]:  # else there is none
                    read[window.long().numpy()] += 1
                    phases.add(int(window[0]) % WINDOW) if fresh else None
        assert read.max() == 1 and read.sum() >= split.end - 2 * WINDOW
    assert len(phases) > 1, "each epoch has windows of its own"


def test_no_forecast_sees_a_later_value_and_all_are_in_the_values_units(corpus: str) -> None:
    model = model_of(config_of(corpus))
    values = torch.from_numpy(waves(WINDOW, columns=3).T.copy())
    changed = values.clone()
    changed[:, 2 * PATCH :] += 3.0
    made, after = (model.forecast(model.read(one).top_BTK, one) for one in (values, changed))
    torch.testing.assert_close(made[:, :2], after[:, :2])
    assert (made[:, 2] - after[:, 2]).abs().amax(1).min() > 0.5
    larger = model.forecast(model.read(100 * values + 7).top_BTK, 100 * values + 7)
    torch.testing.assert_close(larger, 100 * made + 7, rtol=1e-3, atol=1e-2)


@pytest.mark.parametrize(
    ("body", "spec"),
    [
        ("patches", STATES["cache"]), ("patches", None), ("dlinear", None), ("informer", None),
        ("informer", STATES["scores"]),
    ],
)  # fmt: skip
@torch.no_grad()
def test_a_saved_model_forecasts_the_same(body: str, spec: BaseModel | None, corpus: str, tmp_path: Path) -> None:
    model = model_of(config_of(corpus, body=body), spec).float()
    save_model(model, None, tmp_path)
    again, tokenizer = load_model(tmp_path)
    values = window_before(prepare_series(corpus, "test", HORIZON), 250, body)
    torch.testing.assert_close(again.eval()(values), model(values))
    assert tokenizer is None and type(again.recurrence) is type(model.recurrence)


def test_a_trial_of_forecasts_has_its_own_fields_and_no_base(corpus: str) -> None:
    config = config_of(corpus)
    assert {"horizon", "body", "patch"} <= own_fields(config).keys()
    assert not {"base", "tokenizer", "trainable", "loss", "question_tokens"} & own_fields(config).keys()
    assert parse(TrialConfig, config.plain_values()) == config
    assert "horizon" not in own_fields(TrialConfig())
    assert trial_shape(config) == fresh_model(recurrent_config(trial_settings(config), None, None)).config.shape


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ({"window": 10}, "window: 10 time steps are no whole number of patches of 4"),
        ({"overlap": 2}, "overlap: 2 time steps are no whole number of patches of 4"),
        ({"body": "informer", "recurrence": "cache"}, "which informer has not; choose scores or none"),
        ({"body": "informer", "label_steps": 13}, "label_steps: 13 are more than the window of 12"),
        ({"body": "informer", "body_heads": 3}, "body_width: 16 cannot be shared by 3 heads; choose a multiple of 3"),
        ({"horizon": 31}, "horizon: 31 time steps are more than the 30 rows of the validation split of a.csv"),
        ({"window": 208}, "window: 208 time steps and a horizon of 5 behind them are more than the 210 training rows"),
        ({"body_width": 18}, "body_width: 18 cannot be shared by 2 heads of an even size"),
        (
            {"body": "dlinear", "recurrence": "pooled"},
            "'pooled' needs a state from window to window, which dlinear has not; choose none",
        ),
        ({"recurrence": "cache", "cache_rows": 1024}, "3 patches and the 1024 rows of 'cache' .* patches has 1024"),
        ({"base": "gpt2-xl"}, "base: 'gpt2-xl' is about a base .* makes its body from nothing; leave it out"),
        ({"tokenizer": "bytes"}, "tokenizer: 'bytes' is about a base"),
        ({"trainable": "recurrence", "recurrence": "cache"}, "trainable: 'recurrence' is about a base"),
    ],
)
def test_what_does_not_fit_together_is_one_sentence(fields: dict[str, Any], sentence: str, corpus: str) -> None:
    with pytest.raises(UserError, match=sentence):
        config = parse(TrialConfig, config_of(corpus).plain_values() | fields)
        config.check_base(trial_shape(config))


@pytest.mark.parametrize("body", ["patches", "informer"])
def test_a_resumed_run_goes_on_bit_for_bit(body: str, corpus: str, tmp_path: Path) -> None:
    """Informer's distilling has running statistics, which a checkpoint keeps too."""
    config = config_of(corpus, body=body, dropout=0.1, tokens=400, validate_every=100, validation_tokens=60)

    def trained(folder: Path, stops: bool) -> Any:
        trainer, _ = set_up(config, torch.device("cpu"))
        for report in trainer.run():
            if report.tokens >= 200 and stops:
                save_checkpoint(trainer, folder)
                trainer, _ = set_up(config, torch.device("cpu"))
                load_checkpoint(trainer, folder)
                [*_] = trainer.run()
                break
        return trainer.model.state_dict()

    whole, resumed = trained(tmp_path / "a", stops=False), trained(tmp_path / "b", stops=True)
    assert all(torch.equal(one, resumed[name]) for name, one in whole.items())
