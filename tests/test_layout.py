"""Which room may import which: arrows point down, and none runs in a circle.

Read from the source with `ast`, so that imports inside functions count, and those for types alone.
"""

from __future__ import annotations

import ast
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "recur_tune"

# The lowest first. A room is a package; `search` has three, in their order.
LAYERS = (
    "common", "ops", "recurrences", "data", "models", "tasks", "config", "bptt", "cost", "training", "cluster",
    "search.record", "search.propose", "search.run", "report", "tracking", "sites", "analysis", "api", "cli",
)  # fmt: skip
# Who may know of a library; everybody else works without it.
LIBRARIES = {"ray": {"cluster", "search.run", "tracking", "sites"}, "mlflow": {"tracking"}}


def modules() -> dict[str, Path]:
    """Every module below the package, by its dotted name there; the package itself only opens the door."""
    found = {}
    for path in PACKAGE.rglob("*.py"):
        name = ".".join(path.relative_to(PACKAGE).with_suffix("").parts).removesuffix(".__init__")
        if name != "__init__":
            found[name] = path
    return found


@cache
def imports(source: str) -> list[str]:
    """The dotted names that a source imports, wherever in it."""
    found: list[str] = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0 and node.module, "imports are absolute"
            found += [f"{node.module}.{alias.name}" for alias in node.names]
    return found


def own(imported: str) -> str:
    """The module of ours that an import leads to; empty where it is somebody else's."""
    head, _, rest = imported.partition(".")
    while rest and rest not in MODULES:
        rest = rest.rpartition(".")[0]
    return rest if head == PACKAGE.name else ""


def room(module: str) -> str:
    """The room that a module lies in; a package that only holds rooms has none."""
    return next((name for name in LAYERS if module == name or module.startswith(f"{name}.")), "")


MODULES = modules()


def test_every_module_lies_in_a_room() -> None:
    assert {name for name in MODULES if not room(name)} == {"search"}
    assert {room(name) for name in MODULES} - {""} == set(LAYERS)


def test_arrows_point_down() -> None:
    upward = [
        f"{name} imports {target}"
        for name, path in MODULES.items()
        for target in map(own, imports(path.read_text()))
        if target and LAYERS.index(room(target)) > LAYERS.index(room(name))
    ]
    assert upward == []


def test_no_module_needs_itself() -> None:
    """Not even by way of others, for a type, or inside a function."""
    needs = {name: {*map(own, imports(path.read_text()))} - {""} for name, path in MODULES.items()}
    try:
        TopologicalSorter(needs).prepare()
    except CycleError as error:
        pytest.fail(f"a circle: {' <- '.join(error.args[1])}")


@pytest.mark.parametrize("library", LIBRARIES)
def test_a_library_is_known_where_it_has_to_be(library: str) -> None:
    knowing = {
        room(name)
        for name, path in MODULES.items()
        if any(imported.split(".")[0] == library for imported in imports(path.read_text()))
    }
    assert knowing == LIBRARIES[library]


def test_imports_are_found_wherever_they_stand() -> None:
    source = (
        "import one.two\nif TYPE_CHECKING:\n    from three import four\n"
        "def call():\n    if True:\n        from recur_tune.common.parsing import parse\n"
    )
    assert {*imports(source)} == {"one.two", "three.four", "recur_tune.common.parsing.parse"}
    names = ("recur_tune.common.parsing.parse", "recur_tune.sites.slurm.queue", "ray.tune")
    assert [own(name) for name in names] == ["common.parsing", "sites.slurm.queue", ""]
