"""Names of Ray Train that are not promised: a failure here says which of them a new version has changed."""

from __future__ import annotations

import inspect

from ray.train import ControllerError
from ray.train import constants as of_train
from ray.train.torch import TorchTrainer
from ray.train.v2._internal import constants as of_version_2
from ray.train.v2._internal.exceptions import WorkerGroupStartupTimeoutError
from ray.train.v2._internal.execution.callback import ControllerCallback
from ray.train.v2._internal.execution.controller.controller import TrainController
from ray.train.v2._internal.execution.scaling_policy import ScalingPolicy
from ray.train.v2._internal.execution.worker_group.placement_group_handle import DefaultPlacementGroupHandle
from ray.train.v2._internal.execution.worker_group.worker_group import WorkerGroup

from recur_tune.cluster import ray_train_adaptations as adaptations


def test_ray_train_knows_our_environment_variables() -> None:
    known = {value for module in (of_train, of_version_2) for value in vars(module).values() if isinstance(value, str)}
    assert adaptations.train_settings(60).keys() - known == set(), "Ray Train reads other names now"


def test_the_controllers_worker_group_is_an_attribute_of_its_class() -> None:
    assert TrainController.worker_group_cls is WorkerGroup
    assert hasattr(ControllerCallback, "after_controller_start")


def test_a_worker_group_makes_its_placement_group_and_its_workers_where_ours_does() -> None:
    ours = vars(adaptations._TrialWorkers)
    for name in ("_create_placement_group", "_create_workers"):
        assert name in ours and callable(getattr(WorkerGroup, name))
    assert "placement_group_bundle_indices" in inspect.signature(WorkerGroup._create_workers).parameters
    assert callable(DefaultPlacementGroupHandle.shutdown)


def test_a_trainers_callbacks_are_made_where_one_is_left_out() -> None:
    assert callable(TorchTrainer._create_default_callbacks)
    assert "controller_init_kwargs" in inspect.signature(TorchTrainer._initialize_and_run_controller).parameters
    assert {"after_controller_start", "_maybe_send_resource_request"} <= vars(ScalingPolicy).keys()
    error = ControllerError(WorkerGroupStartupTimeoutError(num_workers=2))
    assert adaptations.found_no_place(error) and not adaptations.found_no_place(ControllerError(ValueError()))
