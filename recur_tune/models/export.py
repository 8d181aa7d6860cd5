"""The model's own code beside a saved model: transformers opens the folder where recur-tune is not installed.

The files are ours as they stand, but for how they import one another: the folder is no package of ours. Of the
recurrences the one that the model has goes along.
"""

from __future__ import annotations

import inspect
import json
import re
import sys
from pathlib import Path

from recur_tune.common.shape import family_of
from recur_tune.models.bodies import BODIES
from recur_tune.recurrences import modules as recurrences

_IMPORT = re.compile(r"^from (recur_tune(?:\.\w+)*)\.(\w+) import ", re.MULTILINE)
_ORIGIN = "# recur-tune wrote this beside the model that it trained"


def write_code(folder: Path) -> None:
    """Put every module that the model is made of into its folder, and into its configuration where its classes are."""
    settings = json.loads((folder / "config.json").read_text())
    body, recurrence = BODIES[family_of(settings)], recurrences.module_of(settings["recurrence"].get("kind", "pooled"))
    waiting, seen = [body.__module__, recurrence.__module__], {recurrences.__name__}
    while waiting:
        module = waiting.pop()
        source = inspect.getsource(sys.modules[module])
        seen.add(module)
        waiting += {".".join(found) for found in _IMPORT.findall(source)} - seen
        origin = f"{_ORIGIN}: {module}, with imports of its own.\n"
        (folder / f"{_file(module)}.py").write_text(origin + _IMPORT.sub(r"from .\2 import ", source))
    (folder / f"{_file(recurrences.__name__)}.py").write_text(_only(recurrence))
    settings["auto_map"] = {"AutoConfig": _place(body.config_class), body.opened_by: _place(body)}
    (folder / "config.json").write_text(json.dumps(settings, indent=2, sort_keys=True) + "\n")


def _place(kind: type) -> str:
    """A class as transformers looks for it: the file in the folder, and its name there."""
    return f"{_file(kind.__module__)}.{kind.__name__}"


def _file(module: str) -> str:
    return module.rpartition(".")[2]


def _only(recurrence: type) -> str:
    """A registry of one."""
    return (
        f"{_ORIGIN}: its recurrence.\n"
        f"from .{_file(recurrence.__module__)} import {recurrence.__name__}\n\n\n"
        f"def module_of(kind):\n    return {recurrence.__name__}\n"
    )
