"""Where a trial's workers depart from Ray Train's own behaviour, and why. Seen with Ray 2.60.

Ray Train starts the workers, makes their process group, restarts them after a failure and shows them in Ray's
dashboard. A search keeps its own log, checkpoints and files, so Ray Train is told nothing of them.

placement group  Ray Train makes one for its workers. A trial has one already, in which Ray Tune has reserved a bundle
                 for every worker (`placement_groups.py`): otherwise Ray Tune would start trials for whose workers there
                 is no room. So workers go there, behind the bundle of the trial's own actor.
                 `TrialTrainer` leaves out the actor that removes Ray Train's own group after a crash.
autoscaler       It is asked for that group by Ray Tune. Ray Train would ask once more, by an actor of its own.
polling          Every half second, not every two: a killed worker is noticed that much earlier.
preemption       Ray Train's watcher is off. A node that will leave is known from SLURM (`search.record.directory`).
process group    Its end is awaited for five seconds, not thirty: with a lost worker it may never come.
working folder   Workers stay where they are; paths of a search are absolute.

`tests/cluster/test_ray_train_adaptations.py` fails where a new version of Ray changed a name that is used here.
"""

from __future__ import annotations

from typing import Any

from ray.train import ControllerError, Result
from ray.train.torch import TorchTrainer
from ray.train.v2._internal.callbacks.placement_group_callback import PlacementGroupCleanerCallback
from ray.train.v2._internal.exceptions import WorkerGroupStartupTimeoutError
from ray.train.v2._internal.execution.callback import ControllerCallback, RayTrainCallback
from ray.train.v2._internal.execution.context import TrainRunContext
from ray.train.v2._internal.execution.controller.controller import TrainController
from ray.train.v2._internal.execution.scaling_policy import FixedScalingPolicy
from ray.train.v2._internal.execution.worker_group.placement_group_handle import DefaultPlacementGroupHandle
from ray.train.v2._internal.execution.worker_group.worker_group import WorkerGroup
from ray.util.placement_group import PlacementGroup


def train_settings(patience: float) -> dict[str, str]:
    """Environment variables, which Ray Train reads when a run begins; it waits so many seconds for a worker that does
    not answer."""
    return {
        "RAY_TRAIN_ENABLE_STATE_TRACKING": "1",  # for the dashboard's page
        "RAY_TRAIN_HEALTH_CHECK_INTERVAL_S": "0.5",
        "RAY_TRAIN_WORKER_HEALTH_CHECK_TIMEOUT_S": str(patience),
        "RAY_TRAIN_ENABLE_PREEMPTION_WATCHER": "0",
        "TORCH_PROCESS_GROUP_SHUTDOWN_TIMEOUT_S": "5",
        "RAY_CHDIR_TO_TRIAL_DIR": "0",
    }


def found_no_place(error: BaseException | None) -> bool:
    """Whether Ray Train gave up since its workers had no room within a minute."""
    return isinstance(error, ControllerError) and isinstance(error.controller_failure, WorkerGroupStartupTimeoutError)


class TrialTrainer(TorchTrainer):
    """A TorchTrainer whose workers go into the placement group of their trial."""

    def __init__(self, *args: Any, group: PlacementGroup, **options: Any) -> None:
        super().__init__(*args, **options)
        self.group = group

    def _create_default_callbacks(self) -> list[RayTrainCallback]:
        callbacks = super()._create_default_callbacks()
        kept = [one for one in callbacks if not isinstance(one, PlacementGroupCleanerCallback)]
        return [*kept, _TrialPlacementGroup(self.group)]

    def _initialize_and_run_controller(self, **options: Any) -> Result:
        return super()._initialize_and_run_controller(**options | {"scaling_policy": _AsReserved(self.scaling_config)})


class _AsReserved(FixedScalingPolicy):
    def after_controller_start(self, train_run_context: TrainRunContext) -> None:
        """Ask the autoscaler for nothing."""

    def _maybe_send_resource_request(self) -> None:
        """Nor later."""


class _TrialPlacementGroup(ControllerCallback):
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
