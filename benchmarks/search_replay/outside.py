"""Peers of other packages: SMAC3 and Syne Tune, where they are installed. Neither is a dependency of this project."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from typing import Any

import optuna

from recur_tune.search.record.space import Choice, Fixed, Parameter, Range, Space

from .peers import OptunaProposer
from .recorded import grid
from .scratch import scratch_folder
from .task import Task

NEEDS = {
    "SMAC3, ParEGO": ("smac",), "Syne Tune, EHVI": ("syne_tune", "botorch"), "PriMO": ("neps", "botorch"),
    "BoTorch, MOMF": ("botorch",),
}  # fmt: skip


def left_out() -> dict[str, str]:
    """The methods that cannot run here, and the packages that they lack."""
    missing = {name: [one for one in needs if not importlib.util.find_spec(one)] for name, needs in NEEDS.items()}
    return {name: ", ".join(packages) for name, packages in missing.items() if packages}


class SmacProposer:
    """SMAC3's random forest over one number that ParEGO makes of the objectives, by asking and telling."""

    def __init__(self, task: Task, seed: int, trials: int) -> None:
        from ConfigSpace import Configuration, ConfigurationSpace
        from smac import HyperparameterOptimizationFacade, Scenario
        from smac.multi_objective.parego import ParEGO

        self.chance = Prior(task, seed)
        space = ConfigurationSpace(seed=seed)
        _add_to(space, task.spec().parsed_space)
        scenario = Scenario(  # a quarter of its trials are its initial design
            space, objectives=list(task.objectives), n_trials=trials, seed=seed, deterministic=True,
            output_directory=scratch_folder(self),
        )  # fmt: skip
        starts = [Configuration(space, values=point) for point in self.chance.starts()]
        design = HyperparameterOptimizationFacade.get_initial_design(scenario, additional_configs=starts)
        self.smac = HyperparameterOptimizationFacade(
            scenario, lambda config, seed: {}, initial_design=design, multi_objective_algorithm=ParEGO(scenario),
            overwrite=True, logging_level=50,
        )  # fmt: skip

    def ask(self, by_chance: bool) -> tuple[Any, dict[str, Any]]:
        if by_chance:
            return None, self.chance.draw()
        info = self.smac.ask()
        return info, plain(info.config)

    def tell(self, handle: Any, values: list[float] | None) -> None:
        from smac.runhistory.dataclasses import TrialValue

        if handle is not None:
            self.smac.tell(handle, TrialValue(cost=values), save=False)

    def refuse(self, handle: Any) -> None:
        """It keeps an account of its own."""


class SyneTuneProposer:
    """Syne Tune's expected hypervolume improvement. It has no conditions: what does not exist is drawn and not used."""

    def __init__(self, task: Task, seed: int) -> None:
        from syne_tune.optimizer.schedulers.multiobjective.expected_hyper_volume_improvement import (
            ExpectedHyperVolumeImprovement,
        )

        self.chance, flat = Prior(task, seed), task.spec().parsed_space
        domains = {Space.label(name, one): _domain(name, one) for name, one in flat.all_parameters.items()
                   if not isinstance(one, Fixed)}  # fmt: skip
        missing = {name: domain.sample() for name, domain in domains.items()}
        starts = [{**missing, **point} for point in self.chance.starts()]
        # In single precision: with its default, double, BoTorch 0.18 meets both and raises.
        self.searcher = ExpectedHyperVolumeImprovement(
            domains, points_to_evaluate=starts, random_seed=seed, double_precision=False
        )

    def ask(self, by_chance: bool) -> tuple[Any, dict[str, Any]]:
        if by_chance:
            return None, self.chance.draw()
        point = self.searcher.suggest()
        return len(self.searcher.trial_configs) - 1, plain(point)

    def tell(self, handle: Any, values: list[float] | None) -> None:
        if handle is not None:
            self.searcher.on_trial_complete(handle, self.searcher.trial_configs[handle], values)

    def refuse(self, handle: Any) -> None:
        if handle is not None:
            self.searcher.cleanup_pending(handle)
            del self.searcher.trial_configs[handle]


class Prior:
    """Points of the space by chance, the starting points with what they leave open drawn so."""

    def __init__(self, task: Task, seed: int) -> None:
        self.study = OptunaProposer(task, seed, optuna.samplers.RandomSampler(seed=seed))

    def starts(self) -> list[dict[str, Any]]:
        waiting = len(self.study.study.get_trials(states=(optuna.trial.TrialState.WAITING,)))
        return [self.draw() for _ in range(waiting)]

    def draw(self) -> dict[str, Any]:
        return self.study.ask(by_chance=False)[1]


def plain(point: Mapping[str, Any]) -> dict[str, Any]:
    """Python's own numbers in place of NumPy's."""
    return {name: getattr(value, "item", lambda value=value: value)() for name, value in point.items()}


def _add_to(space: Any, ours: Space) -> None:
    """Our space as ConfigSpace has it, conditions included."""
    from ConfigSpace import Categorical, EqualsCondition, Float, Integer, OrConjunction

    made: dict[str, Any] = {}
    needs: dict[str, list[tuple[str, Any]]] = {}

    def walk(parameters: Mapping[str, Parameter], above: tuple[str, Any] | None) -> None:
        for name, one in parameters.items():
            label = Space.label(name, one)
            if not isinstance(one, Fixed):
                if above is not None:
                    needs.setdefault(label, []).append(above)
                if isinstance(one, Choice) or one.step:
                    made[label] = Categorical(label, grid(name, one))
                else:
                    kind = Integer if isinstance(one.low, int) and isinstance(one.high, int) else Float
                    made[label] = kind(label, (one.low, one.high), log=one.log)
            for value, below in one.below.items() if isinstance(one, Choice) else ():
                walk(below, (label, value))

    walk(ours.parameters, None)
    space.add(*made.values())
    for label, above in needs.items():
        conditions = [EqualsCondition(made[label], made[parent], value) for parent, value in above]
        space.add(conditions[0] if len(conditions) == 1 else OrConjunction(*conditions))


def _domain(name: str, one: Choice | Range) -> Any:
    from syne_tune.config_space import choice, lograndint, loguniform, randint, uniform

    if isinstance(one, Choice) or one.step:
        return choice(grid(name, one))
    if isinstance(one.low, int) and isinstance(one.high, int):
        return (lograndint if one.log else randint)(one.low, one.high)
    return (loguniform if one.log else uniform)(one.low, one.high)
