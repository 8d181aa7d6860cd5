"""Placement groups, which Ray's dashboard lists by their names."""

from __future__ import annotations

import secrets

from ray.tune import PlacementGroupFactory
from ray.util.placement_group import PlacementGroup, placement_group


class NamedPlacementGroups(PlacementGroupFactory):
    """What a trial needs, for its actor and for workers beside it; every place where trials run one after the other is
    named after their search."""

    def __init__(self, search: str, *resources: dict[str, float]) -> None:
        super().__init__(list(resources))
        self.search = search

    def to_placement_group(self) -> PlacementGroup:
        """One more place. Names are unique in a cluster, and Ray never says how many places there are."""
        return placement_group(self.bundles, self.strategy, name=f"{self.search}-{secrets.token_hex(3)}")
