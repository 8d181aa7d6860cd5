"""A node's scratch folder for Ray: of our own, and told by its holder when nobody is left to remove it."""

from __future__ import annotations

import json
import shutil
import tempfile
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path

from recur_tune.common.errors import UserError
from recur_tune.search.record.process_identity import ProcessIdentity

_PREFIX, _HOLDER = "rt", "holder.json"
_LONGEST = 40  # characters: Ray's sockets lie below it, and a socket's path ends at 107


def own_scratch(parent: Path) -> Path:
    """A folder that only we can read: Ray's default one belongs to the first user who came by."""
    if len(str(parent)) > _LONGEST:
        raise UserError(f"scratch: {parent} is too long for Ray's sockets; give a path of at most {_LONGEST} letters.")
    try:
        parent.mkdir(parents=True, exist_ok=True)
        clear_up_after_the_dead(parent)
        made = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=parent))
        (made / _HOLDER).write_text(json.dumps(asdict(ProcessIdentity.current())))
        return made
    except OSError as error:
        raise UserError(f"scratch: {parent} cannot be used on this node ({error.strerror}).") from None


def clear_up_after_the_dead(parent: Path) -> None:
    """Remove what steps have left behind that were killed: SLURM gives those of a node that was cut off no time."""
    for file in parent.glob(f"{_PREFIX}*/{_HOLDER}"):
        with suppress(OSError, ValueError, TypeError):  # not ours to read, or to understand
            if ProcessIdentity(**json.loads(file.read_text())).is_alive() is False:
                shutil.rmtree(file.parent, ignore_errors=True)
