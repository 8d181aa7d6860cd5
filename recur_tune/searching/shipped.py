"""The search spaces that come with the package."""

from __future__ import annotations

from pathlib import Path

from recur_tune.errors import UserError

SHIPPED = Path(__file__).parents[1] / "search_spaces"


def find_space(space: str) -> Path:
    """A file, or the name of a space that comes with the package."""
    path, shipped = Path(space), SHIPPED / f"{space}.yaml"
    if not path.is_file() and shipped.is_file():
        return shipped
    if not path.exists():
        known = ", ".join(sorted(file.stem for file in SHIPPED.glob("*.yaml")))
        raise UserError(f"space: there is no file {space}, and none of that name comes with recur-tune ({known}).")
    return path
