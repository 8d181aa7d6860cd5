"""Which package may import which: arrows point down, and none runs in a circle.

Read from the source with `ast`, so that imports inside functions count, and those for types alone.
"""

from __future__ import annotations

import ast
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "recur_tune"

# The lowest first; what shares a line knows nothing of its neighbours. A module of its own line is apart from its
# package: windows are counted by every trial's configuration, and corpora are named in it.
LAYERS = (
    {"errors", "units", "jsonable", "throttle", "shape", "shapes", "loading"},
    {"files", "hub", "localhost", "neighbours", "shipped"},
    {"corpus.windows"},
    {"recurrences", "tasks"},
    {"spec"},
    {"corpus"},
    {"model"},
    {"training"},
    {"cost"},
    {"trial"},
    {"searching"},
    {"modelling"},
    {"drawing"},
    {"tracking", "monitoring", "cluster", "topics", "budget"},
    {"running", "slurm", "reporting"},
    {"cli"},
)
# Who may know of a library; everybody else works without it.
LIBRARIES = {"ray": {"monitoring", "cluster", "running", "slurm"}, "mlflow": {"tracking"}}


def modules() -> dict[str, Path]:
    """Every module below the package, by its dotted name there; the package itself only opens the door."""
    found = {}
    for path in PACKAGE.rglob("*.py"):
        name = ".".join(path.relative_to(PACKAGE).with_suffix("").parts).removesuffix(".__init__")
        if name != "__init__":
            found[name] = path
    return found


@cache
def imports(source: str, with_types: bool = True) -> list[str]:
    """The dotted names that a source imports, wherever in it; those for types alone can be left out."""
    left_out: set[ast.AST] = set()
    found: list[str] = []
    for node in ast.walk(ast.parse(source)):
        if node in left_out or (not with_types and _is_for_types(node)):
            left_out |= {*ast.iter_child_nodes(node)}
        elif isinstance(node, ast.Import):
            found += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0 and node.module, "imports are absolute"
            found += [f"{node.module}.{alias.name}" for alias in node.names]
    return found


def _is_for_types(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"


def own(imported: str) -> str:
    """The module of ours that an import leads to; empty where it is somebody else's."""
    head, _, rest = imported.partition(".")
    while rest and rest not in MODULES:
        rest = rest.rpartition(".")[0]
    return rest if head == PACKAGE.name else ""


def layer(module: str) -> int:
    """How high a module stands."""
    packages = [module, module.partition(".")[0]]
    return next(at for name in packages for at, names in enumerate(LAYERS) if name in names)


MODULES = modules()


def test_every_package_has_its_place() -> None:
    assert {name.partition(".")[0] for name in MODULES} | {"corpus.windows"} == set().union(*LAYERS)


def test_arrows_point_down() -> None:
    upward = [
        f"{name} imports {target}"
        for name, path in MODULES.items()
        for target in map(own, imports(path.read_text()))
        if target
        and (layer(target) > layer(name) or (layer(target) == layer(name) and _package(target) != _package(name)))
    ]
    assert upward == []


def _package(module: str) -> str:
    return module.partition(".")[0]


def test_no_module_needs_itself() -> None:
    """Not even by way of others; a type alone may, since nothing is imported for it."""
    needs = {
        name: {target for target in map(own, imports(path.read_text(), with_types=False)) if target}
        for name, path in MODULES.items()
    }
    try:
        TopologicalSorter(needs).prepare()
    except CycleError as error:
        pytest.fail(f"a circle: {' <- '.join(error.args[1])}")


@pytest.mark.parametrize("library", LIBRARIES)
def test_a_library_is_known_where_it_has_to_be(library: str) -> None:
    knowing = {
        _package(name)
        for name, path in MODULES.items()
        if any(imported.split(".")[0] == library for imported in imports(path.read_text()))
    }
    assert knowing == LIBRARIES[library]


def test_imports_are_found_wherever_they_stand() -> None:
    source = (
        "import one.two\nif TYPE_CHECKING:\n    from three import four\n"
        "def call():\n    if True:\n        from recur_tune.config.trial import parse\n"
    )
    assert {*imports(source)} == {"one.two", "three.four", "recur_tune.config.trial.parse"}
    assert {*imports(source, with_types=False)} == {"one.two", "recur_tune.config.trial.parse"}
    assert [own(name) for name in ("recur_tune.config.trial.parse", "recur_tune.sites.slurm.queue", "ray.tune")] == [
        "spec", "slurm.queue", "",
    ]  # fmt: skip
