"""Several workers give the numbers of one, and of torch's own DDP."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from safetensors.torch import load_file, save_file
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from recur_tune.bptt.chain import Chain
from recur_tune.bptt.optimizer import make_optimizer
from recur_tune.bptt.plan import Plan
from recur_tune.common.errors import UserError
from recur_tune.common.windowing import NOT_SCORED, Windowing
from recur_tune.cost.training_memory import plan_memory
from recur_tune.data.batches import WindowBatch, starts_of
from recur_tune.models import WindowedDecoder
from recur_tune.recurrences.registry import MECHANISMS, mechanism_of
from recur_tune.training.checkpoint import load_checkpoint, save_checkpoint
from tests.conftest import small_config
from tests.models import chain_batch
from tests.models.bodies import body
from tests.models.mechanisms import SPECS
from tests.models.test_bodies import by_hand
from tests.training.runs import trainer_of, trial
from tests.waiting import PATIENCE

pytestmark = pytest.mark.slow
FORMS = {"none": None} | SPECS
KIND_OF = {form: "none" if spec is None else mechanism_of(spec).name for form, spec in FORMS.items()}
# One form of each mechanism: for a third and a fourth worker, and for DDP, which knows of no mechanism.
FEW = tuple({kind: form for form, kind in reversed(KIND_OF.items())}.values())
# Documents begin in mid-batch, some rows end early, and the last one ends at once: workers score unequally many tokens.
MIXED = chain_batch(Windowing(5, 1), [[13], [9, 5], [5, 5, 4], [2]], windows=3)
KINDS = ("none", *MECHANISMS)
ROOM = {"cache": {"cache_rows": 7}, "tokens": {"state_tokens": 3}}  # the small model has few positions
NEVER = 1e9  # a norm that no gradient has


def share(batch: WindowBatch, rank: int, workers: int) -> WindowBatch:
    """A worker's rows; what the step scores is known to all."""
    rows = slice(rank * 4 // workers, (rank + 1) * 4 // workers)
    inputs, targets, fresh = batch.inputs_WBT[:, rows], batch.targets_WBT[:, rows], batch.fresh_WB[:, rows]
    starts = starts_of(fresh.numpy())
    own = replace(batch, inputs_WBT=inputs, targets_WBT=targets, fresh_WB=fresh, starts=starts)
    return replace(own, scored=int((targets != NOT_SCORED).sum()))


def small(form: str) -> WindowedDecoder:
    torch.manual_seed(3)
    return body("llama", FORMS[form]).train()


def reduced(form: str, batch: WindowBatch) -> dict[str, torch.Tensor]:
    """The step's mean loss and its gradients, by a chain and one all-reduce."""
    model = small(form)
    chain = Chain(model, Plan(1))
    loss, _ = make_optimizer(model, 1e-3, 0.0).receive(
        found := chain.differentiate(batch), chain.trained, batch.mean_over, NEVER
    )
    return named(model, loss, found.gradients)


def by_ddp(form: str, batch: WindowBatch) -> dict[str, torch.Tensor]:
    """The same by DDP, around a model that is read document by document and differentiated by autograd."""
    model, workers = small(form), dist.get_world_size()
    reader = DistributedDataParallel(_Reader(model), find_unused_parameters=True)
    (reader(batch) * workers / batch.mean_over).backward()  # DDP takes the mean over workers
    loss = by_hand(model, batch).detach() / batch.mean_over
    dist.all_reduce(loss)
    return named(model, loss, [torch.zeros_like(one) if one.grad is None else one.grad for one in model.parameters()])


class _Reader(nn.Module):
    def __init__(self, model: WindowedDecoder) -> None:
        super().__init__()
        self.model = model

    def forward(self, batch: WindowBatch) -> torch.Tensor:
        return by_hand(self.model, batch) + 0 * self.model.lm_head.weight.sum()  # a row may score nothing


def named(model: nn.Module, loss: torch.Tensor, gradients: list[torch.Tensor]) -> dict[str, torch.Tensor]:
    names = [name for name, _ in model.named_parameters()]
    return {"loss": loss.clone(), **{name: one.clone() for name, one in zip(names, gradients, strict=True)}}


def run(kind: str, **model: bool) -> dict[str, torch.Tensor]:
    """Losses and weights of a short training."""
    trainer = trainer_of(trial(recurrence=kind, tokens=250, validate_every=1000, **ROOM.get(kind, {})), **model)
    losses = torch.tensor([report.loss for report in trainer.run()])
    return {"losses": losses} | {name: p.detach() for name, p in trainer.model.named_parameters()}


def ways(workers: int) -> list[tuple[str, str]]:
    """Which forms so many workers differentiate, and how. What DDP makes of four shares is torch's business."""
    if workers > 2:
        return [(form, "chain") for form in FEW]
    return [(form, "chain") for form in FORMS] + [(form, "ddp") for form in FEW]


def _differentiating(rank: int, workers: int, folder: Path) -> None:
    if rank == 1:  # has other weights until it is given those of the first worker
        torch.manual_seed(99)
    found = {}
    for form, way in ways(workers):
        values = (reduced if way == "chain" else by_ddp)(form, share(MIXED, rank, workers))
        found |= {f"{way}/{form}/{name}": one for name, one in values.items()}
    if rank == 0:
        save_file(found, folder / f"gradients-{workers}.safetensors")


def _training(rank: int, workers: int, folder: Path) -> None:
    with pytest.raises(UserError, match="batch: 3 chains cannot be shared evenly by 2 workers"):
        trainer_of(trial(batch=3))
    found = {f"double/{kind}": run(kind, double=True) for kind in ("none", "pooled")}
    found |= {f"single/{kind}": run(kind) for kind in KINDS}
    found |= {f"sharded/{kind}": run(kind, double=True, shard=True) for kind in ("none", "pooled")}
    for way, shard in {"replicated": False, "sharded": True}.items():
        trainer = trainer_of(trial(tokens=250), shard=shard)
        assert len(list(trainer.run())) > 2
        found[f"peak/{way}"] = {"bytes": torch.tensor(trainer.measured_peak_bytes)}
    if rank == 0:
        save_file(
            {f"{k}/{name}": one for k, v in found.items() for name, one in v.items()}, folder / "runs.safetensors"
        )
    halves = trainer_of(trial(), double=True, shard=True)
    for report in halves.run():
        if report.tokens >= 500:
            break
    save_checkpoint(halves, folder / "checkpoint")
    dist.barrier()
    again = trainer_of(trial(), double=True, shard=True)
    load_checkpoint(again, folder / "checkpoint")
    losses = torch.tensor([report.loss for report in again.run()])
    if rank == 0:
        save_file({"losses": losses}, folder / "continued.safetensors")


def _worker(rank: int, workers: int, folder: str, work: Callable[[int, int, Path], None]) -> None:
    torch.set_num_threads(1)
    patience = timedelta(seconds=PATIENCE)  # a worker that waits for ever would hide why
    store = f"file://{folder}/store-{workers}-{work.__name__}"
    dist.init_process_group("gloo", init_method=store, rank=rank, world_size=workers, timeout=patience)
    work(rank, workers, Path(folder))
    dist.barrier()
    dist.destroy_process_group()


def start(workers: int, folder: Path, work: Callable[[int, int, Path], None]) -> None:
    """Run this on several workers; forked, they have torch loaded already."""
    mp.start_processes(_worker, args=(workers, str(folder), work), nprocs=workers, start_method="fork")


@pytest.fixture(scope="module")
def gradients(tmp_path_factory: pytest.TempPathFactory) -> dict[str, torch.Tensor]:
    """Of two workers and of four, by ours and by DDP."""
    folder, found = tmp_path_factory.mktemp("gradients"), {}
    for workers in (2, 4):
        start(workers, folder, _differentiating)
        found |= {f"{workers}/{k}": v for k, v in load_file(folder / f"gradients-{workers}.safetensors").items()}
    return found


@pytest.mark.parametrize("form", FORMS)
def test_gradients_of_two_and_four_workers_are_those_of_one_and_of_ddp(
    gradients: dict[str, torch.Tensor], form: str
) -> None:
    tried = [f"{workers}/{way}" for workers in (2, 4) for one, way in ways(workers) if one == form]
    assert "2/chain" in tried
    for name, exact in reduced(form, MIXED).items():
        for way in tried:
            close = {"rtol": 1e-9, "atol": 1e-9 * float(exact.abs().max())}
            torch.testing.assert_close(gradients[f"{way}/{form}/{name}"], exact, **close)


@pytest.fixture(scope="module")
def two_workers(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What two workers trained."""
    folder = tmp_path_factory.mktemp("workers")
    start(2, folder, _training)
    return folder


def trained(folder: Path, way: str, kind: str) -> dict[str, torch.Tensor]:
    stored, prefix = load_file(folder / "runs.safetensors"), f"{way}/{kind}/"
    return {name.removeprefix(prefix): one for name, one in stored.items() if name.startswith(prefix)}


@pytest.mark.parametrize("way", ["double", "sharded"])
@pytest.mark.parametrize("kind", ["pooled", "none"])
def test_two_workers_train_like_one_with_twice_the_batch(two_workers: Path, kind: str, way: str) -> None:
    shared, alone = trained(two_workers, way, kind), run(kind, double=True)
    torch.testing.assert_close(shared.pop("losses"), alone.pop("losses"), rtol=1e-9, atol=0)
    for name, weight in alone.items():
        # Adam divides by the gradient's size, so a rounding error in a vanishing gradient shows in the weight.
        torch.testing.assert_close(shared[name], weight, rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("kind", KINDS)
def test_in_single_precision_too_for_every_mechanism(two_workers: Path, kind: str) -> None:
    losses = trained(two_workers, "single", kind)["losses"]
    torch.testing.assert_close(losses, run(kind)["losses"], rtol=1e-6, atol=0)


@pytest.mark.parametrize(("way", "shards"), [("replicated", 1), ("sharded", 2)])
def test_the_memory_of_each_worker_is_predicted(two_workers: Path, way: str, shards: int) -> None:
    measured = int(trained(two_workers, "peak", way)["bytes"])
    predicted = plan_memory(trial(), small_config(n_layer=2), Plan(1), chains=2, shards=shards)
    assert predicted == pytest.approx(measured, rel=0.02)


@pytest.mark.parametrize("way", ["two workers that share", "one worker"])
def test_a_checkpoint_of_sharded_moments_is_continued_by_any_number_of_workers(two_workers: Path, way: str) -> None:
    whole = [report.loss for report in trainer_of(trial(), double=True).run()]
    if way == "one worker":
        trainer = trainer_of(trial(), double=True)
        load_checkpoint(trainer, two_workers / "checkpoint")
        continued = torch.tensor([report.loss for report in trainer.run()])
    else:
        continued = load_file(two_workers / "continued.safetensors")["losses"]
    assert 0 < len(continued) < len(whole)
    torch.testing.assert_close(continued, torch.tensor(whole[-len(continued) :]), rtol=1e-8, atol=0)
