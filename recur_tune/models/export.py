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
    body, recurrence = BODIES[family_of(settings)], recurrences.module_of(settings["recurrence"].get("kind", "pooled"))
    sources = _sources(body.__module__, recurrence.__module__)
    files = _files([*sources, recurrences.__name__])
    sources[recurrences.__name__] = _registry(files[recurrence.__module__], recurrence.__name__)
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


def _registry(file: str, name: str) -> str:
    """A registry of one recurrence."""
    return f"from .{file} import {name}\n\n\ndef module_of(kind):\n    return {name}\n"
