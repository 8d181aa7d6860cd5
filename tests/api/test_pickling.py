"""What is pickled: a search's outputs, for a driver on another machine, and results, by whoever keeps them."""

from __future__ import annotations

import pickle
from pathlib import Path

from recur_tune.api.outputs import OUTPUTS
from recur_tune.api.result import SearchResult
from recur_tune.search.record.directory import SearchDirectory


def test_outputs() -> None:
    assert pickle.loads(pickle.dumps(OUTPUTS)) == OUTPUTS


def test_a_result_of_version_0_2_0(tmp_path: Path) -> None:
    result = SearchResult(SearchDirectory(tmp_path))
    old = pickle.dumps(result, protocol=2).replace(b"recur_tune.api.result", b"recur_tune.search.run.result")
    assert pickle.loads(old).directory.path == tmp_path
