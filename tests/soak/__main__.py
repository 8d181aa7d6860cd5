"""An hour of searches with a fault every minute, and whether anything that must hold ever does not.

    python -m tests.soak [--minutes 60] [--seed 1] [--report build/soak] [--only "frozen driver" "moved folder"]

Every fault and its moment come from the seed; how far a search is when one strikes does not. The exit code is 1 where
an invariant broke.
"""

from __future__ import annotations

import argparse
import shutil
import signal
import sys
import time
from pathlib import Path

from tests.sites.slurm.mini_slurm import available
from tests.soak.faults import FAULTS
from tests.soak.ground import ground
from tests.soak.report import table, write_report
from tests.soak.soak import Outcome, Soak


def main() -> int:
    """Run it, and say how it went."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=60, help="how long faults come")
    parser.add_argument("--seed", type=int, default=1, help="which faults, and when")
    parser.add_argument("--report", type=Path, default=Path("build/soak"), help="the folder for the report")
    parser.add_argument("--only", nargs="+", choices=list(FAULTS), default=list(FAULTS), metavar="FAULT",
                        help=f"these kinds of faults, of {', '.join(FAULTS)}")  # fmt: skip
    arguments = parser.parse_args()
    if reason := available() or (None if shutil.which("cc") else "a slow disk needs a C compiler, which is not here"):
        print(f"soak: {reason}.", file=sys.stderr)
        return 2
    for number in (signal.SIGINT, signal.SIGTERM):  # the first of which a shell's background jobs would not hear
        signal.signal(number, signal.default_int_handler)
    outcome = Outcome(arguments.seed, arguments.minutes)
    say(f"a soak of {arguments.minutes:g} minutes, seed {arguments.seed}")
    interrupted = False
    try:
        with ground() as place:
            soak = Soak(place, outcome, say, arguments.only)
            try:
                soak.run()
            finally:
                if outcome.broken or sys.exc_info()[0] not in (None, KeyboardInterrupt):
                    keep_evidence(place.site.results, arguments.report / "searches")
    except KeyboardInterrupt:
        interrupted = True
    print("\n".join(["", *table(outcome)]))
    for path in write_report(arguments.report, outcome):
        print(f"wrote {path}")
    for text in outcome.broken:
        print(f"BROKEN: {text}")
    if interrupted:
        print("interrupted; nothing is left behind.")
        return 130
    print(f"{len(outcome.struck)} faults, {len(outcome.ended)} searches, {len(outcome.broken)} broken invariants")
    return 1 if outcome.broken else 0


def say(text: str) -> None:
    """A line of progress."""
    print(f"{time.strftime('%H:%M:%S')}  {text}", flush=True)


def keep_evidence(results: Path, to: Path) -> None:
    """The directories of all searches, logs included, for whoever looks into what broke."""
    shutil.rmtree(to, ignore_errors=True)
    shutil.copytree(results, to, ignore_dangling_symlinks=True, symlinks=True)


if __name__ == "__main__":
    sys.exit(main())
