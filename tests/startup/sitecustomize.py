"""What Python imports when it starts, where this folder is on its path: commands of ours come from the fork server.

So do those that a job of SLURM starts, or a search that goes on by itself: they are started as ever, and whoever did it
finds a process that takes its signals and ends as the command does.
"""

from __future__ import annotations

import os
import sys

if sys.orig_argv[1:3] == ["-m", "recur_tune.cli.main"]:
    from tests.forkserver import COMMAND
    from tests.handover import SERVER, hand_over

    if server := os.environ.get(SERVER):  # an import cannot be left in another way
        os._exit(hand_over(server, [COMMAND, *sys.orig_argv[3:]], sys.orig_argv[1:]))
