"""A further cost is one descriptor: estimates, objectives, limits, MLflow's metrics and the command line know it."""

from __future__ import annotations

import json
import subprocess
import sys
from textwrap import dedent

PROGRAM = """
    import json
    from dataclasses import replace

    from recur_tune.cost.descriptors import COSTS

    COSTS["energy"] = replace(
        COSTS["flops_per_token"], name="energy", title="energy/token", explained="energy of a token, in nanojoules",
        metric=("energy_nJ", 1.0), fields=frozenset({"window"}),
        predict=lambda trial: 2.0 * trial.config.window, closed_form=lambda config, shape: 2.0 * config.window,
    )

    from click.testing import CliRunner

    from recur_tune.cli.main import cli
    from recur_tune.common.parsing import parse
    from recur_tune.search.record.spec import SearchSpec
    from recur_tune.tracking.mlflow.units import metric_name

    spec = parse(SearchSpec, {
        "space": {"window": [8, 16]}, "objectives": ["perplexity", "energy"], "limits": {"energy": "1k"},
        "budget": {"trials": 1},
    })
    words = ["cost", "--base", "tiny", "--tokenizer", "bytes", "--window", "16", "--bptt-windows", "2"]
    shown, told = (CliRunner().invoke(cli, [*words, *more]).stdout for more in ([], ["--json"]))
    print(json.dumps({
        "limits": spec.limits, "metric": metric_name("energy"), "predicted": json.loads(told)["energy"],
        "shown": "energy of a token, in nanojoules" in " ".join(shown.split()),
    }))
"""


def test_a_cost_is_one_descriptor() -> None:
    done = subprocess.run([sys.executable, "-c", dedent(PROGRAM)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == {
        "limits": {"energy": 1000.0}, "metric": "energy_nJ", "predicted": 32.0, "shown": True,
    }  # fmt: skip
