"""Several workers give the numbers of one."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from safetensors.torch import load_file, save_file

from recur_tune.common.errors import UserError
from tests.training.runs import trainer_of, trial
from tests.waiting import PATIENCE

pytestmark = pytest.mark.slow


def _worker(rank: int, folder: str) -> None:
    torch.set_num_threads(1)
    patience = timedelta(seconds=PATIENCE)  # a worker that waits for ever would hide why
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2, timeout=patience)
    with pytest.raises(UserError, match="batch: 3 chains cannot be shared evenly by 2 workers"):
        trainer_of(trial(batch=3))
    for recurrence in ("pooled", "none"):
        trainer = trainer_of(trial(recurrence=recurrence, tokens=500), double=True)
        losses = torch.tensor([report.loss for report in trainer.run()])
        if rank == 0:
            weights = {name: p.detach() for name, p in trainer.model.named_parameters()}
            save_file(weights | {"losses": losses}, f"{folder}/{recurrence}.safetensors")
    # The last to hold the group must not be DDP's reducer: it would wait, with Python's lock, for a thread of Gloo that
    # wants the lock to let go of the last gradients.
    del trainer
    dist.barrier()
    dist.destroy_process_group()


@pytest.fixture(scope="module")
def two_workers(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What two processes made of both kinds of model; forked, they have torch loaded already."""
    folder = tmp_path_factory.mktemp("workers")
    mp.start_processes(_worker, args=(str(folder),), nprocs=2, start_method="fork")
    return folder


@pytest.mark.parametrize("recurrence", ["pooled", "none"])
def test_two_workers_train_like_one_with_twice_the_batch(two_workers: Path, recurrence: str) -> None:
    shared = load_file(two_workers / f"{recurrence}.safetensors")
    alone = trainer_of(trial(recurrence=recurrence, tokens=500), double=True)
    losses = torch.tensor([report.loss for report in alone.run()])
    torch.testing.assert_close(shared.pop("losses"), losses, rtol=1e-9, atol=0)
    for name, parameter in alone.model.named_parameters():
        # Adam divides by the gradient's size, so a rounding error in a vanishing gradient shows in the weight.
        torch.testing.assert_close(shared[name], parameter.detach(), rtol=1e-6, atol=1e-8)
