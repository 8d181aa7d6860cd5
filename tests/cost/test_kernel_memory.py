"""Peak memory on a GPU: a step is priced as it runs, with what its kernels allocate and keep."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from transformers import CONFIG_MAPPING, PretrainedConfig

from recur_tune.bptt.chain import Chain
from recur_tune.bptt.memory_tracker import MemoryTracker
from recur_tune.bptt.optimizer import make_optimizer
from recur_tune.bptt.plan import Execution, Plan
from recur_tune.bptt.step import train_step
from recur_tune.common.errors import UserError
from recur_tune.common.shape import shape_of
from recur_tune.config.trial import TrialConfig
from recur_tune.cost import training_memory
from recur_tune.cost.fake_tensors import FakeTensors
from recur_tune.cost.training_memory import plan_memory, predict_peak_memory, track_step
from recur_tune.models.pretrained import base_config, fresh_model, recurrent_config
from recur_tune.models.trained import Trained
from recur_tune.ops.matmul import add_product
from recur_tune.ops.triton import jit
from recur_tune.ops.triton.launches import without_launches
from recur_tune.recurrences.registry import MECHANISMS
from tests.conftest import small_config, small_model
from tests.models import full_batch
from tests.models.bodies import BODIES

FUSED = Execution(fused_kernels=True)
LANES, SIZE, WINDOWS = 2, 16, 3
GATED = [{"recurrence": "cache", "cache_join": "gate"}, {"recurrence": "fast_weights", "write_rule": "gated"}]


@pytest.fixture
def on_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(training_memory, "default_device", lambda: torch.device("cuda"))


def config_of(**fields: Any) -> TrialConfig:
    usual = {"window": SIZE, "bptt_windows": WINDOWS, "batch": LANES, "cache_rows": 9, "score_heads": 2}
    return TrialConfig(**usual | {"precision": "float32", "cuda_graph": False, "fused_kernels": True} | fields)


def base_of(family: str) -> PretrainedConfig:
    settings = dict(BODIES[family])
    return CONFIG_MAPPING[settings.pop("model_type")](**settings)


def real_and_simulated(config: TrialConfig, base: PretrainedConfig, kept: int) -> tuple[int, int]:
    """The peak of a step's real tensors, which no kernel fills, and of its fake ones, which stand for a CPU's too."""
    described = recurrent_config(base, config.recurrence_spec, config.dropout)
    model = fresh_model(described).train()
    optimizer, batch, plan = make_optimizer(model, 1e-3, 0.0), full_batch(WINDOWS, LANES, SIZE), Plan(kept)
    chain = Chain(model, plan, FUSED)
    with without_launches():
        train_step(chain, optimizer, batch, clip_norm=1.0, precision=config.precision)
        real = track_step(MemoryTracker(), chain, optimizer, batch, config.precision)
    shape = described.to_json_string(use_diff=False)
    fake = training_memory._simulate(
        shape, SIZE, WINDOWS, LANES, config.precision, plan, False, Trained(config.trainable), FUSED
    )
    return real, fake.peak


@pytest.mark.slow
@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
@pytest.mark.parametrize("form", [*({"recurrence": name} for name in ("none", *MECHANISMS)), *GATED], ids=str)
def test_what_is_simulated_with_kernels_is_the_peak_of_real_tensors(form: dict[str, Any], precision: str) -> None:
    kept = 1 if precision == "float32" else WINDOWS
    real, simulated = real_and_simulated(config_of(**form, precision=precision), small_config(n_layer=2), kept)
    assert simulated == pytest.approx(real, rel=0.01)


@pytest.mark.slow
@pytest.mark.parametrize("recurrence", ["none", "fast_weights", "scores"])
def test_so_it_is_where_heads_share_keys_and_positions_turn(recurrence: str) -> None:
    real, simulated = real_and_simulated(config_of(recurrence=recurrence), base_of("llama"), WINDOWS)
    assert simulated == pytest.approx(real, rel=0.01)


# By `benchmarks/mechanisms.py --base mini --batch 16 --window 300 --bptt-windows 10` on an H200
# (docs/recurrences.md): the form of which kernels save most, and the one with the lowest peak.
@pytest.mark.parametrize(
    ("form", "measured"),
    [
        ({"recurrence": "fast_weights", "write_rule": "delta"}, 6.85),
        ({"recurrence": "cache", "cache_join": "gate"}, 2.18),
    ],
    ids=str,
)
@pytest.mark.usefixtures("on_gpu")
def test_the_prediction_is_what_was_measured_on_a_gpu(form: dict[str, Any], measured: float) -> None:
    config = TrialConfig(
        base="mini", batch=16, window=300, bptt_windows=10, checkpointing="none", cuda_graph=True,
        fused_kernels=True, **form
    )  # fmt: skip
    assert predict_peak_memory(config, base_config("mini")) / 2**30 == pytest.approx(measured, rel=0.05)


@pytest.mark.slow
@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("form", [{"recurrence": "none"}, *GATED], ids=str)
@pytest.mark.usefixtures("on_gpu")
def test_a_long_chain_is_priced_from_a_short_one_with_and_without_kernels(
    form: dict[str, Any], fused: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    base, windows = small_config(n_layer=1), 6
    config, plans = (
        config_of(**form, bptt_windows=windows, cuda_graph=True, fused_kernels=fused),
        (Plan(1), Plan(4), Plan(windows)),
    )

    def tensors() -> list[int]:
        return [plan_memory(config, base, plan, LANES) - training_memory._WORKSPACES for plan in plans]

    short = tensors()
    monkeypatch.setattr(training_memory, "_SIMULATED_WINDOWS", windows)
    monkeypatch.setattr(training_memory, "_SIMULATED_KEPT", windows)
    assert tensors() == pytest.approx(short, rel=0.003)


@pytest.mark.usefixtures("on_gpu")
def test_a_trial_is_priced_as_it_will_run() -> None:
    base = small_config(n_layer=2)

    def peak(chains: int = LANES, **fields: Any) -> int:
        config = config_of(recurrence="fast_weights", checkpointing="none", **fields)
        return predict_peak_memory(config, base, chains)

    auto = {"cuda_graph": "auto", "fused_kernels": "auto"}
    enough = math.ceil(1e14 / shape_of(base.to_dict()).parameters)
    long, short = (auto | {"tokens": tokens} for tokens in (enough, enough - 1))
    plain, graph, _, both = (
        {"cuda_graph": graph, "fused_kernels": fused} for fused in (False, True) for graph in (False, True)
    )
    assert peak(**long) == peak(**both) < peak(**graph) == peak(**short)
    assert peak(1, **long) == peak(1, **both), "a worker of several too"
    # Without either, a window that begins all documents has no state.
    assert peak(**plain) < peak(**graph)


def test_on_a_gpu_a_product_is_added_where_its_total_lies() -> None:
    added = {}
    for on_gpu in (True, False):
        with FakeTensors(on_gpu), MemoryTracker() as tracker:
            rows, other, total = torch.zeros(5, 8).bfloat16(), torch.zeros(5, 4).bfloat16(), torch.zeros(8, 4)
            before = tracker.peak = tracker.live
            add_product(total, rows, other)
            added[on_gpu] = tracker.peak - before
    assert added == {True: 0, False: 8 * 4 * 2}


def test_so_the_heads_gradient_is_never_there_twice() -> None:
    vocabulary, hidden = 4096, 24
    shape = small_config(vocab_size=vocabulary, n_layer=1).to_json_string(use_diff=False)
    on_cpu, on_gpu = (
        training_memory._simulate(shape, SIZE, 2, LANES, "bfloat16", Plan(1), on_gpu, Trained(), FUSED).peak
        for on_gpu in (False, True)
    )
    losses = LANES * SIZE * 4  # of rows: at a GPU's peak they are there, and gone when a CPU multiplies
    assert on_cpu + training_memory._WORKSPACES - on_gpu == vocabulary * hidden * 2 - losses


def test_without_triton_a_kernel_can_be_priced_and_not_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jit, "_is_installed", False)
    chain, batch = Chain(small_model(), Plan(1), FUSED), full_batch(2, 1, 8)
    with without_launches():
        chain.differentiate(batch)
    with pytest.raises(UserError, match="fused_kernels: they need Triton"):
        chain.differentiate(batch)
