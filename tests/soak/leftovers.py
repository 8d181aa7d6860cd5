"""What a search that has ended must not leave behind."""

from __future__ import annotations

from collections.abc import Iterator

from recur_tune.common.files import PARTIAL
from recur_tune.search.record.front import front
from recur_tune.training import RESUME
from tests.sites.slurm.mini_slurm import NODES
from tests.sites.slurm.site import Submitted
from tests.soak.ground import Ground

_OURS = ("recur_tune.", "raylet", "gcs_server", "ray::", "place.so")


def left_behind(ground: Ground, search: Submitted) -> list[str]:
    """Processes, files and locks of a search without a job, each in a sentence."""
    return [*_on_nodes(ground), *_in_directory(search)]


def _on_nodes(ground: Ground) -> Iterator[str]:
    for node in NODES:
        running = ground.slurm.on_node(node, "ps", "-ewwo", "args").stdout.splitlines()
        yield from (f"{node} still runs {line[:100]}" for line in running if any(word in line for word in _OURS))
        scratch = ground.slurm.on_node(node, "find", "/tmp", "-maxdepth", "1", "-name", "rt*").stdout.split()
        yield from (f"{node} still has {path}" for path in scratch)


def _in_directory(search: Submitted) -> Iterator[str]:
    path = search.directory.path
    for kind in (RESUME, f"{PARTIAL}*"):
        yield from (f"{found.relative_to(path)} is left" for found in sorted(path.rglob(kind)))
    best = {trial.number for trial in front(search.state.trials.values(), search.directory.spec.objectives)}
    models = {int(model.parent.name) for model in path.glob("trials/*/model")}
    if models != best:
        yield f"there are models of trials {sorted(models)}, and the front is {sorted(best)}"
    if search.directory.is_running:
        yield "its lease is still held"
    if search.folder.head is not None:
        yield "head.json still names a cluster"
