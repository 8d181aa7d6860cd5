"""What Python imports when it starts, where this folder is on its path: commands come from the fork server.

So do those that a job of SLURM starts, or a search that goes on by itself, and MLflow's servers: they are started as
ever, and whoever did it finds a process that takes its signals and ends as the command does.
"""

from __future__ import annotations

import os
import sys

# Ours, and the two of which an MLflow server consists: each loads all of MLflow.
if sys.orig_argv[1:2] == ["-m"] and sys.orig_argv[2] in ("recur_tune.cli.main", "mlflow", "uvicorn"):
    from tests.handover import SERVER, hand_over

    if server := os.environ.get(SERVER):  # an import cannot be left in another way
        os._exit(hand_over(server, sys.orig_argv[1:], sys.orig_argv[1:]))
