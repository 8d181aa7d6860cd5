"""Peers that choose for how long a trial is trained: PriMO, and BoTorch's MOMF, where they are installed.

They ask for a point and a share of the budget. What was trained of a point before is not paid for again, and a share
that was reached before is told at once. As all peers, none knows costs before it has trained.
"""

from __future__ import annotations

import random
from typing import Any, Protocol

import numpy as np
import optuna

from recur_tune.search.propose.features import Features
from recur_tune.search.record.space import Choice, Fixed, Range, Space

from .clock import Job
from .outside import Prior, plain
from .peers import MOST_TRIES
from .recorded import grid
from .task import Task, Verdict

_PATIENCE = 2  # proposals of what was trained already, before random ones; another takes seconds


class StagedProposer(Protocol):
    """Proposes a point and how far to train it."""

    def ask(self) -> tuple[Any, dict[str, Any], float]:
        """A handle, a point by the sampler's names, and a share of the budget."""

    def tell(self, handle: Any, values: list[float]) -> None:
        """The objectives there, as shares of the reference."""

    def note(self, point: dict[str, Any], values: list[float]) -> None:
        """The same of a point at the whole budget for which it did not ask."""


class StagedPeer:
    """A method that trains each point as far as its proposer asks."""

    def __init__(self, task: Task, proposer: StagedProposer, seed: int) -> None:
        self.task, self.spec, self.proposer = task, task.spec(), proposer
        self.chance = Prior(task, seed)
        self.starts = self.chance.starts()
        self.jobs: dict[str, Job] = {}
        self.running: set[str] = set()

    def begin(self) -> Job | None:
        for tries in range(MOST_TRIES):
            if self.starts or tries >= _PATIENCE:
                point, share = self.starts.pop(0) if self.starts else self.chance.draw(), 1.0
                handle = None
            else:
                handle, point, share = self.proposer.ask()
            params = self.spec.parsed_space.draw(optuna.trial.FixedTrial(point))
            name = repr(sorted(params.items()))
            job = self.jobs.setdefault(name, Job(self.spec.trial_config(params)))
            until = self._validations(job, share)
            if name not in self.running and job.said < until:
                self.running.add(name)
                job.own = name, handle, point, until
                return job
            if handle is not None:  # one that runs is told as far as it came
                self.proposer.tell(handle, self._values(job, max(1, min(until, job.said))))
        return None

    def report(self, job: Job, tokens: int, quality: float, last: bool) -> Verdict:
        name, handle, point, until = job.own
        if job.said < until and not last:
            return "go on"
        self.running.discard(name)
        if handle is None:
            self.proposer.note(point, self._values(job, job.said))
        else:
            self.proposer.tell(handle, self._values(job, job.said))
        return "pause"

    def _validations(self, job: Job, share: float) -> int:
        """How many validations it takes until so much of the budget."""
        history = self.task.history(job.config)
        wanted = share * self.spec.budget.tokens
        return next((place for place, (tokens, _) in enumerate(history, 1) if tokens >= wanted), len(history))

    def _values(self, job: Job, validations: int) -> list[float]:
        values = [self.task.history(job.config)[validations - 1][1], *self.task.costs(job.config)]
        return [value / worst for value, worst in zip(values, self.task.reference, strict=True)]


class PrimoProposer:
    """PriMO of NePS without an expert's priors: MO-ASHA at first, then Bayesian optimisation of one weighted sum. It
    has no conditions: what does not exist is drawn and not used."""

    def __init__(self, task: Task, seed: int) -> None:
        import torch
        from neps.optimizers.algorithms import primo
        from neps.optimizers.ask_and_tell import AskAndTell
        from neps.space import HPOInteger, SearchSpace

        random.seed(seed)
        np.random.seed(seed)
        torch.manual_seed(seed)
        space = task.spec().parsed_space
        self.choices = {label: grid(name, one) for label, name, one in _parameters(space) if _is_listed(one)}
        elements = {label: _element(name, one) for label, name, one in _parameters(space)}
        self.rungs = 2 ** (task.spec().budget.rungs - 1)
        elements["fidelity"] = HPOInteger(1, self.rungs, is_fidelity=True)
        self.asking = AskAndTell(primo(SearchSpace(elements), prior_centers={}, eta=2))
        # What stands for a parameter that does not exist in a point.
        self.absent = {label: "0" if _is_listed(one) else one.low for label, _, one in _parameters(space)}

    def ask(self) -> tuple[Any, dict[str, Any], float]:
        trial = self.asking.ask()
        point = dict(trial.config)
        share = point.pop("fidelity") / self.rungs
        return trial, plain({name: self._value(name, value) for name, value in point.items()}), share

    def _value(self, name: str, value: Any) -> Any:
        return self.choices[name][int(value)] if name in self.choices else value

    def tell(self, handle: Any, values: list[float]) -> None:
        self.asking.tell(handle, values)

    def note(self, point: dict[str, Any], values: list[float]) -> None:
        config = dict(self.absent)
        for name, value in point.items():
            config[name] = str(self.choices[name].index(value)) if name in self.choices else value
        unused = 1 + max((int(name.split("_")[0]) for name in self.asking.trials), default=0)
        name = f"{unused}_rung_{self.rungs.bit_length() - 1}"
        self.asking.tell_custom(config_id=name, config={**config, "fidelity": self.rungs}, result=values)


class MomfProposer:
    """BoTorch's MOMF: expected hypervolume improvement with the share of the budget as a further objective, over 200
    random points, at every rung. The processes are BoTorch's own, one for each objective."""

    def __init__(self, task: Task, seed: int) -> None:
        import torch

        torch.manual_seed(seed)
        spec = task.spec()
        self.space, self.features, self.chance = spec.parsed_space, Features(spec.parsed_space), Prior(task, seed + 1)
        self.shares = [tokens / spec.budget.tokens for tokens in spec.budget.rung_tokens]
        self.rows: list[list[float]] = []
        self.told: list[list[float]] = []

    def ask(self) -> tuple[Any, dict[str, Any], float]:
        points = [self.chance.draw() for _ in range(200)]
        rows = self.features([self.space.fields_of(point) for point in points])
        if len(self.told) < len(self.shares):  # the first points of a search, to every rung
            place, share = 0, self.shares[len(self.told)]
        else:
            place, share = self._best(rows)
        return [*rows[place], share], points[place], share

    def tell(self, handle: list[float], values: list[float]) -> None:
        self.rows.append(handle)
        self.told.append(values)

    def note(self, point: dict[str, Any], values: list[float]) -> None:
        [row] = self.features([self.space.fields_of(point)])
        self.tell([*row, 1.0], values)

    def _best(self, rows: np.ndarray) -> tuple[int, float]:
        """The point and the share with the largest gain for its tokens."""
        import torch
        from botorch import fit_gpytorch_mll
        from botorch.acquisition.multi_objective.multi_fidelity import MOMF
        from botorch.models import ModelListGP, SingleTaskGP
        from botorch.models.transforms.outcome import Standardize
        from botorch.utils.multi_objective.box_decompositions.non_dominated import FastNondominatedPartitioning
        from gpytorch.mlls import SumMarginalLogLikelihood

        known = torch.tensor(self.rows, dtype=torch.double)
        values = torch.cat([-torch.tensor(self.told, dtype=torch.double), known[:, -1:]], dim=1)  # MOMF maximises
        models = [SingleTaskGP(known, column[:, None], outcome_transform=Standardize(m=1)) for column in values.T]
        model = ModelListGP(*models)
        fit_gpytorch_mll(SumMarginalLogLikelihood(model.likelihood, model))
        corner = torch.tensor([-1.0, -1.0, -1.0, 0.0], dtype=torch.double)
        gain = MOMF(model, corner, FastNondominatedPartitioning(corner, Y=values), cost_call=lambda x: x[..., -1:])
        candidates = torch.tensor(
            np.concatenate([np.column_stack([rows, np.full(len(rows), share)]) for share in self.shares])
        )
        with torch.no_grad():
            found = torch.cat([gain(some[:, None]) for some in candidates.split(100)])
        best = int(found.argmax())
        return best % len(rows), self.shares[best // len(rows)]


def _parameters(space: Space) -> list[tuple[str, str, Choice | Range]]:
    return [
        (Space.label(name, one), name, one) for name, one in space.all_parameters.items() if not isinstance(one, Fixed)
    ]


def _is_listed(one: Choice | Range) -> bool:
    return isinstance(one, Choice) or bool(one.step)


def _element(name: str, one: Choice | Range) -> Any:
    from neps.space import HPOCategorical, HPOFloat, HPOInteger

    if _is_listed(one):  # by their places: values may be of several types
        return HPOCategorical([str(place) for place, _ in enumerate(grid(name, one))])
    assert isinstance(one, Range)
    kind = HPOInteger if isinstance(one.low, int) and isinstance(one.high, int) else HPOFloat
    return kind(one.low, one.high, log=one.log)
