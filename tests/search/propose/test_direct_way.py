"""Choices are those of the direct way: scikit-learn's process conditioned anew on all rows, and nothing kept."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from sklearn.gaussian_process import GaussianProcessRegressor

from recur_tune.search.propose import earlier_searches, gaussian_process
from recur_tune.search.propose.candidates import NewTrial
from recur_tune.search.propose.earlier_searches import LeaningKernel
from recur_tune.search.propose.expected_gains import ExpectedGains
from recur_tune.search.propose.gaussian_process import JITTER, CurveKernel, Standardization
from recur_tune.search.propose.known_costs import KnownCosts
from recur_tune.search.propose.observations import fields_key
from recur_tune.search.record.knowledge import EarlierCurve, EarlierSearch
from tests.search.propose.test_known_costs import Search, SlowPrice, quality


class Direct:
    """The posterior by scikit-learn; it is computed again for further rows."""

    def __init__(self, kernel: CurveKernel, rows: np.ndarray, values: np.ndarray, scale: Standardization) -> None:
        self.given, self.scale = (kernel, rows, values, scale), scale
        self.process = GaussianProcessRegressor(kernel, alpha=JITTER, optimizer=None)
        if len(rows):
            self.process.fit(rows, scale.standardize(values))

    def conditioned_on(self, rows: np.ndarray, values: np.ndarray) -> Direct:
        kernel, before, known, scale = self.given
        return Direct(kernel, np.concatenate([before, rows]), np.concatenate([known, values]), scale)

    def predict(self, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        mean, std = map(np.atleast_1d, self.process.predict(rows, return_std=True))
        return self.scale.mean + self.scale.std * mean, self.scale.std * std

    def mean(self, rows: np.ndarray) -> np.ndarray:
        return self.predict(rows)[0]

    def standard_mean(self, rows: np.ndarray) -> np.ndarray:
        return np.atleast_1d(self.process.predict(rows))


def nothing_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    def gains_of(self: ExpectedGains, pool: Any) -> np.ndarray:
        costs = np.array([[one.costs[name] for name in self.costs] for one in pool])
        return self.gains([one.fields for one in pool], costs)

    monkeypatch.setattr(gaussian_process, "CurvePosterior", Direct)
    monkeypatch.setattr(earlier_searches, "CurvePosterior", Direct)
    monkeypatch.setattr(ExpectedGains, "_gains_of", gains_of)
    monkeypatch.setattr(LeaningKernel, "_expected_of_own", LeaningKernel.expected)
    monkeypatch.setattr(KnownCosts, "_key", lambda self, trial: fields_key(trial.fields))


def chosen(earlier: int, choices: int) -> list[NewTrial]:
    """Choices of a search of which 25 trials have ended, and three run. Before the next, one of them ends."""
    search, rng = Search(SlowPrice()), np.random.default_rng(0)

    def drawn() -> dict[str, Any]:
        return search.spec.parsed_space.sample(rng)[1]

    curves = tuple(
        EarlierCurve(one, tuple((share, 1.5 * quality(one, share)) for share in (0.5, 1.0)))
        for one in (drawn() for _ in range(earlier))
    )
    known = [EarlierSearch("earlier", curves)] if earlier else []
    search.sampler = KnownCosts(search.spec, SlowPrice(), search.spec.trial_config, known)
    for _ in range(28):
        search.tell(drawn(), 0.25, 0.5, 1.0)
    found = []
    for _ in range(choices):
        running = [replace(one, curve=one.curve[:1], complete=False, pending=True) for one in search.trials[-3:]]
        choice = search.sampler.choose([*search.trials[:-3], *running], search.reference)
        assert isinstance(choice, NewTrial)
        found.append(choice)
        search.tell(search.spec.parsed_space.fields_of(choice.point), 0.25, 0.5, 1.0)
    return found


@pytest.mark.parametrize("earlier", [0, 12])
def test_choices_and_their_gains_are_those_of_the_direct_way(earlier: int, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (gaussian_process, earlier_searches):  # fewer rows than there are, as late in a search
        monkeypatch.setattr(module, "MOST_ROWS", 50)
        monkeypatch.setattr(module, "MOST_FITTED", 30)
    found = chosen(earlier, 4)
    nothing_is_kept(monkeypatch)
    direct = chosen(earlier, 4)
    assert [one.point for one in found] == [one.point for one in direct]
    assert [one.gain for one in found] == pytest.approx([one.gain for one in direct], rel=1e-6)
