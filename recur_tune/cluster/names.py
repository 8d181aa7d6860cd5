"""What the parts of a search are called where one looks at a cluster: Ray's dashboard, `top`, `nvidia-smi`."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from typing import Any

from ray.tune import PlacementGroupFactory
from ray.util.placement_group import PlacementGroup, placement_group

from recur_tune.cluster.ray_internals import set_process_title


class NamedPlaces(PlacementGroupFactory):
    """What a trial needs; every place where trials run one after the other is named after their search."""

    def __init__(self, search: str, resources: dict[str, float]) -> None:
        super().__init__([resources])
        self.search = search

    def to_placement_group(self) -> PlacementGroup:
        """One more place. Names are unique in a cluster, and Ray never says how many places there are."""
        return placement_group(self.bundles, self.strategy, name=f"{self.search}-{secrets.token_hex(3)}")


def named(train: Callable[[dict[str, Any]], None], name: str) -> Callable[[dict[str, Any]], None]:
    """The same function by another name, which Ray gives to the actors that run it."""

    def trial(config: dict[str, Any]) -> None:
        train(config)

    trial.__name__ = name
    return trial


def call_this_process(name: str) -> None:
    """Ray calls its processes by the method that they run; people look for a trial."""
    set_process_title(f"ray::{name}")
