"""The `ray` command in a third of its time: without the subcommands of Ray Serve, jobs and states.

    python -m recur_tune.cluster.command start --head

They are not needed here, and their imports (FastAPI, pandas) take 1.5 s of a core whenever Ray starts on a node. `ray`
skips a subcommand whose module cannot be imported.
"""

from __future__ import annotations

import sys

_LEFT_OUT = ("ray.serve.scripts", "ray.dashboard.modules.job.cli", "ray.util.state.state_cli")


def main() -> None:
    """Run `ray` with these arguments."""
    sys.modules.update(dict.fromkeys(_LEFT_OUT))  # type: ignore[arg-type]  # an entry of None raises ImportError
    from ray.scripts.scripts import main as ray

    ray()


if __name__ == "__main__":
    main()
