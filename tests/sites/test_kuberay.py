"""sites/profiles/kuberay.yaml against KubeRay's own schema."""

from __future__ import annotations

import json
from importlib.metadata import version
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from recur_tune.common.errors import UserError
from recur_tune.common.shipped import KUBERAY, find_profile

SCHEMA = json.loads(Path(__file__).with_name("kuberay.json").read_text())


@pytest.fixture
def cluster() -> Any:
    return yaml.safe_load(KUBERAY.read_text())


def test_kuberay_takes_it(cluster: Any) -> None:
    jsonschema.validate(cluster, SCHEMA)
    assert (cluster["apiVersion"], cluster["kind"]) == ("ray.io/v1", "RayCluster")


def test_a_slip_would_be_seen(cluster: Any) -> None:
    for place, wrong in (
        (cluster["spec"], {"headGroupSpecs": {}}),
        (cluster["spec"]["workerGroupSpecs"][0], {"replicas": "two"}),
        (cluster["spec"]["headGroupSpec"]["template"]["spec"]["containers"][0], {"volumeMount": []}),
        (cluster["spec"]["authOptions"], {"mode": "password"}),
    ):
        before = dict(place)
        place.update(wrong)
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate(cluster, SCHEMA)
        place.clear()
        place.update(before)
    jsonschema.validate(cluster, SCHEMA)


def test_it_asks_for_the_ray_that_we_are_tested_with(cluster: Any) -> None:
    assert cluster["spec"]["rayVersion"] == version("ray")


def test_it_is_no_profile_of_a_slurm_site() -> None:
    with pytest.raises(UserError, match=r"there is no file kuberay.*\(cpu-only, das5, generic-gpu\)"):
        find_profile("kuberay")
