"""Loading without looking for garbage meanwhile."""

from __future__ import annotations

import gc
import subprocess
import sys
from pathlib import Path

import pytest

from recur_tune.common.loading import load


@pytest.mark.parametrize("collecting", [True, False])
def test_the_collector_is_paused_meanwhile_and_then_as_it_was(
    collecting: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = f"loaded_while_{collecting}".lower()
    (tmp_path / f"{name}.py").write_text("import gc\nfound = gc.isenabled()\n")
    (tmp_path / f"{name}_broken.py").write_text("1 / 0\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    (gc.enable if collecting else gc.disable)()
    try:
        assert load(name).found is False
        with pytest.raises(ZeroDivisionError):
            load(f"{name}_broken")
        assert gc.isenabled() == collecting
    finally:
        gc.enable()


def test_a_waiting_process_loads_neither_models_nor_mlflow() -> None:
    code = (
        "import sys, recur_tune.search.run.execution, recur_tune.tracking.mlflow.tracker\n"
        "print({'torch', 'transformers', 'ray', 'mlflow'} & sys.modules.keys())"
    )
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert said.stdout == "set()\n"
