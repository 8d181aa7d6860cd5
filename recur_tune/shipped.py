"""Files that come with the package and can be named instead of a path: search spaces, site profiles."""

from __future__ import annotations

from pathlib import Path

from recur_tune.errors import UserError

SEARCH_SPACES, SITE_PROFILES = (Path(__file__).parent / folder for folder in ("search_spaces", "site_profiles"))


def _find(given: str, shipped: Path, field: str) -> Path:
    """A file, or one of the `shipped` folder by its name alone."""
    path, named = Path(given), shipped / f"{given}.yaml"
    if not path.is_file() and named.is_file():
        return named
    if not path.exists():
        known = ", ".join(sorted(file.stem for file in shipped.glob("*.yaml")))
        raise UserError(f"{field}: there is no file {given}, and none of that name comes with recur-tune ({known}).")
    return path


def find_space(given: str) -> Path:
    """A search space."""
    return _find(given, SEARCH_SPACES, "space")


def find_profile(given: str) -> Path:
    """A site's profile."""
    return _find(given, SITE_PROFILES, "slurm")
