"""`ray` as on a command line, in a third of its time: without the commands of Ray Serve, of its jobs and of its states.

    python -m recur_tune.sites.ray.command start --head

Nobody asks for these here, and what they import (FastAPI, pandas) takes 1.5 s of a processor, on every node, whenever
Ray starts there. `ray` goes without a command whose module cannot be imported.
"""

from __future__ import annotations

import sys

_LEFT_OUT = ("ray.serve.scripts", "ray.dashboard.modules.job.cli", "ray.util.state.state_cli")


def main() -> None:
    """Do what the arguments say."""
    sys.modules.update(dict.fromkeys(_LEFT_OUT))  # type: ignore[arg-type]  # whoever imports None has an ImportError
    from ray.scripts.scripts import main as ray

    ray()


if __name__ == "__main__":
    main()
