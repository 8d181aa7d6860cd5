"""What a trial gets on a cluster: room for its workers, GPUs of one kind, and the memory of each."""

from __future__ import annotations

from typing import Any

import pytest

from recur_tune.cluster.capacity import sharing_notice, trial_resources
from recur_tune.cluster.connection import Cluster
from recur_tune.cluster.gpu_packing import Card
from recur_tune.common.errors import UserError
from recur_tune.common.parsing import parse
from recur_tune.config.resources import Resources

GIB = 2**30
CORES: dict[str, float] = {"CPU": 4.0, "memory": 32.0 * GIB}
H100, A100 = ({"CPU": 8.0, "GPU": 2.0, f"accelerator_type:{kind}": 1.0} for kind in ("H100", "A100"))


def resources(**fields: Any) -> Resources:
    return parse(Resources, fields)


@pytest.mark.parametrize(
    ("nodes", "fields", "words"),
    [
        ([CORES] * 2, {"workers": 9}, "9 workers with 1 CPU and 0 GPUs each, which the cluster with 8 CPUs"),
        ([CORES] * 2, {"workers": [1, 9]}, "9 workers with 1 CPU"),  # sooner or later a trial would need them
        ([CORES] * 2, {"workers": 2, "cpus": 5}, "2 workers with 5 CPUs"),
        ([H100] * 2, {"workers": 5}, "5 workers with 1 CPU and 1 GPU each, which the cluster with 16 CPUs and 4 GPUs"),
        ([H100], {"workers": 2, "gpus": 0.5}, "gpus 0.5 is too little"),
        ([H100, A100], {"workers": 2}, "has A100 and H100, and of 2 workers"),
    ],
)
def test_a_group_that_can_never_be_placed_is_refused(
    nodes: list[dict[str, float]], fields: dict[str, Any], words: str
) -> None:
    with pytest.raises(UserError, match=words):
        trial_resources(resources(**fields), Cluster(None, nodes))


def test_workers_on_gpus_of_two_kinds_do_not_matter_where_they_use_none() -> None:
    assert trial_resources(resources(workers=2, gpus=0), Cluster(None, [H100, A100])).gpus == 0
    assert trial_resources(resources(), Cluster(None, [H100, A100])).gpus == 1, "nor where each trial has one"


@pytest.mark.parametrize(
    ("nodes", "fields", "at_once"),
    [
        ([CORES] * 2, {}, 8),
        ([CORES] * 2, {"workers": 3}, 2),
        ([CORES] * 2, {"workers": [2, 4]}, 4),  # at most
        ([H100] * 2, {"workers": 2}, 2),
        ([H100] * 2, {"workers": [1, 2], "cpus": 2}, 8),  # those with one share GPUs, as far as cores suffice
    ],
)
def test_as_many_trials_run_at_once_as_groups_of_their_fewest_workers_fit(
    nodes: list[dict[str, float]], fields: dict[str, Any], at_once: int
) -> None:
    assert trial_resources(resources(**fields), Cluster(None, nodes), Card(80 * GIB)).at_once == at_once


def test_a_workers_memory_is_its_cards_or_its_part_of_the_nodes() -> None:
    card = trial_resources(resources(workers=[1, 2]), Cluster(None, [H100]), Card(80 * GIB)).memory
    assert card is not None and 70 * GIB < card < 79 * GIB, "without CUDA's context"
    small: dict[str, float] = {"CPU": 8.0, "memory": 16.0 * GIB}
    assert trial_resources(resources(workers=[1, 2], cpus=2), Cluster(None, [CORES, small])).memory == 4 * GIB
    assert trial_resources(resources(workers=2), Cluster(None, [CORES])).memory is None, "nothing is to be chosen"


def test_where_no_memory_is_known_every_trial_has_the_fewest_workers_and_a_line_says_so() -> None:
    given, cluster = resources(workers=[4, 2, 2]), Cluster(None, [H100] * 2)
    assert given.worker_counts == (2, 4)
    said = sharing_notice(given, cluster, trial_resources(given, cluster))
    assert said == "workers [2, 4]: every trial gets 2, since the memory of a worker is not known."


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"shard": "optimizer"}, "shard optimizer needs several workers"),
        ({"shard": "optimizer", "workers": [1]}, "shard optimizer needs several workers"),
        ({"shard": "weights", "workers": 2}, "shard"),
        ({"workers": []}, "workers: has no number"),
        ({"workers": 0}, "workers"),
        ({"workers": [1, 0]}, "workers"),
        ({"workers": "many"}, "workers"),
    ],
)
def test_numbers_of_workers_that_make_no_sense_are_refused(fields: dict[str, Any], words: str) -> None:
    with pytest.raises(UserError, match=words) as refused:
        resources(**fields)
    assert "\n" not in str(refused.value)
