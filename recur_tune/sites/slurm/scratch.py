"""A node's scratch folder for Ray, private to us; a stale one is recognised by its holder, which is dead."""

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
    """A private folder: Ray's default belongs to the first user of the node."""
    if len(str(parent)) > _LONGEST:
        raise UserError(f"scratch: {parent} is too long for Ray's sockets; give at most {_LONGEST} characters.")
    try:
        parent.mkdir(parents=True, exist_ok=True)
        remove_stale_scratch(parent)
        made = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=parent))
        (made / _HOLDER).write_text(json.dumps(asdict(ProcessIdentity.current())))
        return made
    except OSError as error:
        raise UserError(f"scratch: {parent} cannot be used on this node ({error.strerror}).") from None


def remove_stale_scratch(parent: Path) -> None:
    """Remove folders of killed steps, which had no time to clean up."""
    for file in parent.glob(f"{_PREFIX}*/{_HOLDER}"):
        with suppress(OSError, ValueError, TypeError):  # another user's, or another format
            if ProcessIdentity(**json.loads(file.read_text())).is_alive() is False:
                shutil.rmtree(file.parent, ignore_errors=True)
