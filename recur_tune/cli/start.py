"""Entry point of `recur-tune`: a line on the terminal at once, while the commands are loaded."""

from __future__ import annotations

import sys

_LOADING, _ERASE = "loading …", "\r\033[K"


def main() -> None:
    """Load the commands, which takes a second, or many on a busy machine or a network file system; then run one."""
    shown = sys.stderr.isatty()
    if shown:
        print(_LOADING, end="", file=sys.stderr, flush=True)
    try:
        from recur_tune.cli.main import main as run
    finally:
        if shown:
            print(_ERASE, end="", file=sys.stderr, flush=True)
    run()
