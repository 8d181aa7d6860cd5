"""Where a trial's workers depart from Ray Train's own behaviour, and why. Seen with Ray 2.60.

Ray Train starts the workers, makes their process group, restarts them after a failure and shows them in Ray's
dashboard. A search keeps its own log, checkpoints and files, so Ray Train is told nothing of them.

placement group  Ray Train makes one for its workers. A trial has one already, in which Ray Tune has reserved a bundle
                 for every worker (`placement_groups.py`): otherwise Ray Tune would start trials for whose workers there
                 is no room. So workers go there, behind the bundle of the trial's own actor.
polling          Every half second, not every two: a killed worker is noticed that much earlier.
preemption       Ray Train's watcher is off. A node that will leave is known from SLURM (`search.record.directory`).
working folder   Workers stay where they are; paths of a search are absolute.

`tests/cluster/test_ray_train_adaptations.py` fails where a new version of Ray changed a name that is used here.
"""

from __future__ import annotations

from typing import Any

from ray.train.v2._internal.execution.callback import ControllerCallback
from ray.train.v2._internal.execution.context import TrainRunContext
from ray.train.v2._internal.execution.controller.controller import TrainController
from ray.train.v2._internal.execution.worker_group.placement_group_handle import DefaultPlacementGroupHandle
from ray.train.v2._internal.execution.worker_group.worker_group import WorkerGroup
from ray.util.placement_group import PlacementGroup

# Environment variables, which Ray Train reads when a run begins.
TRAIN_SETTINGS = {
    "RAY_TRAIN_ENABLE_STATE_TRACKING": "1",  # for the dashboard's page
    "RAY_TRAIN_HEALTH_CHECK_INTERVAL_S": "0.5",
    "RAY_TRAIN_ENABLE_PREEMPTION_WATCHER": "0",
    "RAY_CHDIR_TO_TRIAL_DIR": "0",
}


class TrialPlacementGroup(ControllerCallback):
    """Puts Ray Train's workers into the placement group of their trial."""

    def __init__(self, group: PlacementGroup) -> None:
        self.group = group

    def after_controller_start(self, train_run_context: TrainRunContext) -> None:
        """In the controller's process, before it starts any worker."""
        TrainController.worker_group_cls = type("TrialWorkers", (_TrialWorkers,), {"group": self.group})


class _TrialWorkers(WorkerGroup):
    group: PlacementGroup

    def _create_placement_group(self, scaling_config: Any, worker_group_context: Any) -> _BorrowedPlacementGroup:
        return _BorrowedPlacementGroup(self.group)

    def _create_workers(self, num_workers: int, *args: Any, **options: Any) -> Any:
        behind_the_actor = list(range(1, num_workers + 1))
        return super()._create_workers(num_workers, *args, placement_group_bundle_indices=behind_the_actor, **options)


class _BorrowedPlacementGroup(DefaultPlacementGroupHandle):
    def shutdown(self) -> None:
        """Keep it: Ray Tune made it and removes it."""
