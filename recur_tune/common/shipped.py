"""Files shipped with the package and found by name: search spaces, site profiles."""

from __future__ import annotations

from pathlib import Path

from recur_tune.common.errors import UserError

_PACKAGE = Path(__file__).parents[1]
SEARCH_SPACES, SITE_PROFILES = _PACKAGE / "search" / "spaces", _PACKAGE / "sites" / "profiles"
KUBERAY = SITE_PROFILES / "kuberay.yaml"  # a cluster for Kubernetes, not a profile


def _find(given: str, shipped: Path, field: str) -> Path:
    """The file given by its path, or by its name in the `shipped` folder."""
    path, known = Path(given), {file.stem: file for file in sorted(shipped.glob("*.yaml")) if file != KUBERAY}
    if not path.is_file() and given in known:
        return known[given]
    if not path.exists():
        names = ", ".join(known)
        raise UserError(f"{field}: there is no file {given}, and none of that name comes with recur-tune ({names}).")
    return path


def find_space(given: str) -> Path:
    """A search space."""
    return _find(given, SEARCH_SPACES, "space")


def find_profile(given: str) -> Path:
    """A site's profile."""
    return _find(given, SITE_PROFILES, "slurm")
