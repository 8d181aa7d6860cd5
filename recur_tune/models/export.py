"""The model's own code beside a saved model: transformers opens the folder where recur-tune is not installed.

The files are copies of our modules, with relative imports in place of absolute ones: the folder is no package of ours.
Each is named after its whole module path, so modules whose last names are equal do not replace each other. Of the
recurrences only the model's own is saved.
"""

from __future__ import annotations

import inspect
import json
import re
import sys
from pathlib import Path

from recur_tune.common.errors import UserError
from recur_tune.common.shape import family_of
from recur_tune.models.bodies import BODIES
from recur_tune.recurrences import modules as recurrences

_IMPORT = re.compile(r"^from (recur_tune(?:\.\w+)+) import ", re.MULTILINE)
_ORIGIN = "# recur-tune wrote this beside the model that it trained"


def write_code(folder: Path) -> None:
    """Write every module that the model needs into its folder, and the places of its classes into its configuration."""
    settings = json.loads((folder / "config.json").read_text())
    body, parts = BODIES[family_of(settings)], recurrences.modules_of(settings["recurrence"])
    sources = _sources(body.__module__, *(part.__module__ for part in parts))
    files = _files([*sources, recurrences.__name__])
    sources[recurrences.__name__] = _registry({files[part.__module__]: part.__name__ for part in parts})
    for module, source in sources.items():
        code = _IMPORT.sub(lambda found: f"from .{files[found[1]]} import ", source)
        (folder / f"{files[module]}.py").write_text(f"{_ORIGIN}: {module}, with imports of its own.\n{code}")
    classes = {"AutoConfig": body.config_class, body.opened_by: body}
    settings["auto_map"] = {name: f"{files[one.__module__]}.{one.__name__}" for name, one in classes.items()}
    (folder / "config.json").write_text(json.dumps(settings, indent=2, sort_keys=True) + "\n")


def _sources(*modules: str) -> dict[str, str]:
    """The code of these modules and of all modules of ours that they import, but for the registry."""
    sources, waiting = dict[str, str](), [*modules]
    while waiting:
        module = waiting.pop()
        if module not in sources and module != recurrences.__name__:
            sources[module] = inspect.getsource(sys.modules[module])
            waiting += _IMPORT.findall(sources[module])
    return sources


def _files(modules: list[str]) -> dict[str, str]:
    """The file's name for every module: its whole path, for ours without the package's name."""
    files = dict[str, str]()
    for module in modules:
        file = module.removeprefix("recur_tune.").replace(".", "_")
        for other in (other for other, taken in files.items() if taken == file):
            raise UserError(f"recurrence: {other} and {module} would both be saved as {file}.py; rename one of them.")
        files[module] = file
    return files


def _registry(parts: dict[str, str]) -> str:
    """A registry of one recurrence: the class of each of its parts, by file."""
    imports = "".join(f"from .{file} import {name}\n" for file, name in parts.items())
    return f"{imports}\n\ndef modules_of(settings):\n    return [{', '.join(parts.values())}]\n"
