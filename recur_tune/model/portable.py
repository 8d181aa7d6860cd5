"""The model's own code beside a saved model: transformers opens the folder where recur-tune is not installed.

The files are ours as they stand, but for how they import one another: the folder is no package of ours.
"""

from __future__ import annotations

import inspect
import json
import re
import sys
from pathlib import Path

from recur_tune.model.language_model import RecurrentGPT2, RecurrentGPT2Config

_IMPORT = re.compile(r"^from (recur_tune(?:\.\w+)*)\.(\w+) import ", re.MULTILINE)


def write_code(folder: Path) -> None:
    """Put every module that the model is made of into its folder, and into its configuration where its classes are."""
    waiting, seen = [RecurrentGPT2.__module__], set[str]()
    while waiting:
        module = waiting.pop()
        source = inspect.getsource(sys.modules[module])
        seen.add(module)
        waiting += {".".join(found) for found in _IMPORT.findall(source)} - seen
        name = module.rpartition(".")[2]
        origin = f"# recur-tune wrote this beside the model that it trained: {module}, with imports of its own.\n"
        (folder / f"{name}.py").write_text(origin + _IMPORT.sub(r"from .\2 import ", source))
    config = folder / "config.json"
    settings = json.loads(config.read_text()) | {"auto_map": AUTO_MAP}
    config.write_text(json.dumps(settings, indent=2, sort_keys=True) + "\n")


def _place(kind: type) -> str:
    """A class as transformers looks for it: the file in the folder, and its name there."""
    return f"{kind.__module__.rpartition('.')[2]}.{kind.__name__}"


AUTO_MAP = {"AutoConfig": _place(RecurrentGPT2Config), "AutoModelForCausalLM": _place(RecurrentGPT2)}
