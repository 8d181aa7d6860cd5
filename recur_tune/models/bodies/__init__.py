"""Bodies: transformers' own models, with a recurrence between their windows; one file a family.

A new one is a file in here and a line in `FAMILIES` of `recur_tune.common.shape`, which is read without torch.
"""

from __future__ import annotations

from importlib import import_module

from recur_tune.common.shape import FAMILIES
from recur_tune.models.windowed import Windowed


def model_class(model: str) -> type[Windowed]:
    """The class that a family names as `module.Class`."""
    module, _, name = model.partition(".")
    return getattr(import_module(f"{__name__}.{module}"), name)


# By transformers' `model_type`.
BODIES: dict[str, type[Windowed]] = {name: model_class(family.model) for name, family in FAMILIES.items()}
