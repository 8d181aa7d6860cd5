"""A trial's resources as a placement group: a bundle for its actor, and one for each of several workers. It has a name
for Ray's dashboard."""

from __future__ import annotations

import secrets

from ray.tune import PlacementGroupFactory
from ray.util.placement_group import PlacementGroup, placement_group


class NamedPlacementGroups(PlacementGroupFactory):
    """Resources of a trial's actor and workers; each placement group is named after the search."""

    def __init__(self, search: str, *resources: dict[str, float]) -> None:
        super().__init__(list(resources))
        self.search = search

    def to_placement_group(self) -> PlacementGroup:
        """A new group with a random suffix: names are unique in a cluster, and Ray gives no number."""
        return placement_group(self.bundles, self.strategy, name=f"{self.search}-{secrets.token_hex(3)}")
