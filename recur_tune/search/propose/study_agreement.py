"""Agreement of Optuna's study with the log: the log is the truth, and a study that differs is made anew from it.

What only the study knows, because the log lost its end, is given back to the log first.
"""

from __future__ import annotations

import json
import math
from collections.abc import Container, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import optuna
from optuna.trial import FrozenTrial, TrialState

from recur_tune.common.files import reading, storage_fault, whole_folder
from recur_tune.search.propose.observations import ObservedTrial
from recur_tune.search.propose.optuna_study import STUDY_STATES, first_points, study_name, study_storage
from recur_tune.search.record.directory import STUDY, SearchDirectory
from recur_tune.search.record.knowledge import EarlierTrial, Knowledge, knowledge_of
from recur_tune.search.record.objectives import COSTS, OBJECTIVES
from recur_tune.search.record.recovery import Book
from recur_tune.search.record.spec import SearchSpec
from recur_tune.search.record.state import ENDED, Event, SearchState, TrialRecord, in_current_terms

_SAID = "as Optuna's study has it; its line in the log is lost"


@dataclass(frozen=True)
class StudyOnDisk:
    """The study as it was read: of a damaged journal what stands before the damage."""

    trials: Mapping[int, FrozenTrial]
    damaged: bool = False


def read_study(directory: SearchDirectory) -> StudyOnDisk:
    """Read the study's trials, by their numbers."""
    file = directory.path / STUDY
    if not file.is_file() or not file.stat().st_size:
        return StudyOnDisk({})
    try:
        return StudyOnDisk(_trials(file.parent))
    except Exception as error:  # Optuna raises all kinds on a damaged journal
        if fault := storage_fault(error):
            raise fault from error
    with TemporaryDirectory(prefix="recur-tune-") as folder, suppress(Exception):
        with reading(file):
            lines = file.read_bytes().splitlines(keepends=True)
        (Path(folder) / STUDY).write_bytes(b"".join(_before_damage(lines)))
        return StudyOnDisk(_trials(Path(folder)), damaged=True)
    return StudyOnDisk({}, damaged=True)


def _trials(folder: Path) -> dict[int, FrozenTrial]:
    storage = study_storage(folder)
    study = optuna.load_study(study_name=study_name(storage, ""), storage=storage)
    return {trial.number: trial for trial in study.get_trials(deepcopy=False)}


def _before_damage(lines: Iterable[bytes]) -> Iterable[bytes]:
    for line in lines:
        try:
            if "op_code" not in json.loads(line):
                return
        except (ValueError, TypeError):
            return
        yield line


def study_book(
    told: Mapping[int, FrozenTrial], state: SearchState, spec: SearchSpec, begun: Container[int]
) -> Book:  # fmt: skip
    """What the study knows of trials, as events of the log. Where its costs of a trial are not the log's, it is damaged
    and not believed.

    Args:
        begun: Trials that are known to have begun; others that are open in the study were only asked for.
    """
    trials = {}
    for number, trial in told.items():
        asked = trial.state != TrialState.WAITING and (trial.state.is_finished() or number in begun)
        if asked and not {"earlier", "repeats"} & trial.user_attrs.keys():
            trials[number] = _events(trial, state.trials.get(number), spec)
    return Book("Optuna's study", trials)


def _events(trial: FrozenTrial, record: TrialRecord | None, spec: SearchSpec) -> list[Event]:
    started = trial.datetime_start.timestamp() if trial.datetime_start else 0.0
    ended = trial.datetime_complete.timestamp() if trial.datetime_complete else started
    about: Event = {"trial": trial.number, "time": round(started, 3)}
    events: list[Event] = []
    values = dict(zip(spec.objectives, trial.values or (), strict=False))
    costs = {name: value for name, value in values.items() if name in COSTS}
    if record is None and (params := fields_of(trial, spec)):
        told = {name: trial.user_attrs[name] for name in ("role", "gain") if name in trial.user_attrs}
        events.append({**about, "kind": "trial", "params": params, "costs": costs, **told})
    elif record is None or any(not _same(record.costs.get(name), value) for name, value in costs.items()):
        return []
    about = {"trial": trial.number, "time": round(ended, 3)}
    if trial.state == TrialState.COMPLETE and len(values) == len(spec.objectives):
        qualities = {name: value for name, value in values.items() if name not in COSTS}
        at_end = {"tokens": spec.budget.tokens, "validation": qualities, "state": "complete"}
        events += [{**about, "kind": "running", "time": round(started, 3)}, {**about, "kind": "report", **at_end}]
    elif trial.state == TrialState.PRUNED:
        infeasible = any(value > 0 for value in trial.constraints.values())
        events.append({**about, "kind": "end", "state": "infeasible" if infeasible else "pruned", "reason": _SAID})
    elif trial.state == TrialState.FAIL and record is not None:
        events.append({**about, "kind": "end", "state": "failed", "reason": _SAID})
    if trial.state == TrialState.FAIL and record is None:  # mostly asked for and known already
        return []
    return events


def fields_of(trial: FrozenTrial, spec: SearchSpec) -> dict[str, Any]:
    """The fields of a study's trial in current terms, as the log has them; none where the study has no settings."""
    fields = spec.parsed_space.fields_of(trial.params) if trial.params else {}
    return dict(in_current_terms({"params": fields})["params"]) if fields else {}


def differs(told: Mapping[int, FrozenTrial], state: SearchState, spec: SearchSpec) -> bool:
    """Whether the study cannot be continued with: it lacks trials, has others, or tells other ends than the log. Ends
    that it has not heard of yet are no difference."""
    if not told:
        return bool(state.trials or state.repeats)
    for number, record in state.trials.items():
        trial = told.get(number)
        if trial is None or trial.state == TrialState.WAITING or fields_of(trial, spec) != record.params:
            return True
        if trial.state.is_finished() and STUDY_STATES.get(record.state) != trial.state:
            return True
        if trial.state == TrialState.COMPLETE and not _same_values(trial.values, record.values(spec.objectives)):
            return True
    known = {*state.trials, *state.repeats}
    invented = {TrialState.COMPLETE, TrialState.PRUNED}
    return not set(state.repeats) <= set(told) or any(
        one.state in invented and one.number not in known and "earlier" not in one.user_attrs for one in told.values()
    )


def make_anew(
    directory: SearchDirectory, state: SearchState, told: Mapping[int, FrozenTrial], reserved: Iterable[int] = ()
) -> None:
    """Make the study from the log; the old one stays beside it. Trials that wait in the old one wait in the new one.

    Args:
        reserved: Numbers that no further trial may get, since files or runs of another have them.
    """
    spec = directory.spec
    with whole_folder(directory.path) as partial:
        storage = study_storage(partial)
        study = optuna.create_study(
            study_name=directory.name, storage=storage, directions=["minimize"] * len(spec.objectives),
            sampler=optuna.samplers.RandomSampler(seed=spec.sampler.seed),
        )  # fmt: skip
        study.set_metric_names(list(spec.objectives))
        knowledge = knowledge_of(directory)
        tell_earlier_trials(study, spec, knowledge.told)
        begun = len(study.get_trials(deepcopy=False))
        for number in range(begun, 1 + max((*state.trials, *state.repeats, *reserved), default=-1)):
            _add(study, spec, number, state, told.get(number))
        for point, attributes in _waiting(told, state, spec, knowledge):
            study.enqueue_trial(point, user_attrs=attributes)
        old = directory.path / STUDY
        if old.exists():
            old.replace(old.with_suffix(".old"))


def _add(study: optuna.Study, spec: SearchSpec, number: int, state: SearchState, before: FrozenTrial | None) -> None:
    """Add a trial of the log; a number that the log does not have takes its place in the study alone. Several points
    of the sampler may have the same fields: that of the old study is kept."""
    record = state.trials.get(number)
    if record is None:
        repeats = state.repeats[number].repeats if number in state.repeats else None
        attributes: dict[str, Any] = {} if repeats is None else {"repeats": repeats}
        study.add_trial(optuna.trial.create_trial(state=TrialState.FAIL, user_attrs=attributes))
        return
    attributes = {name: value for name, value in (("role", record.role), ("gain", record.gain)) if value}
    try:
        known = before is not None and fields_of(before, spec) == record.params
        point = before.params if before and known else spec.parsed_space.point(record.params)
    except ValueError:  # its settings are outside of the space, as after a damage: only its number is taken
        point = {}
    study.enqueue_trial(point, user_attrs=attributes)
    trial = study.ask()
    if point:
        spec.parsed_space.draw(trial)
    for name, limit in spec.limits.items():
        if name in record.costs:
            trial.set_constraint(name, record.costs[name] / limit - 1)
    tell(study, trial, record, spec)


def tell(study: optuna.Study, trial: optuna.Trial, record: TrialRecord, spec: SearchSpec) -> None:
    """Tell the study how a trial has ended, if it has."""
    if record.state not in ENDED:
        return
    if record.state == "infeasible" and all(value <= 0 for value in trial.constraints.values()):
        trial.set_constraint("trainable", 1.0)  # it broke no limit of the search, but cannot be trained
    state = STUDY_STATES[record.state]
    study.tell(trial, record.values(spec.objectives) if state == TrialState.COMPLETE else None, state=state)


def _waiting(
    told: Mapping[int, FrozenTrial], state: SearchState, spec: SearchSpec, knowledge: Knowledge
) -> Iterable[tuple[dict[str, Any], dict[str, Any]]]:
    """Points that wait to be asked for, with their attributes: the old study's, or where it is lost the first points
    that the log has not seen."""
    known = {*state.trials, *state.repeats}
    waiting = [one for one in told.values() if one.state == TrialState.WAITING and one.number not in known]
    for one in waiting:
        yield one.system_attrs.get("fixed_params", {}), dict(one.user_attrs)
    if not waiting:
        begun = {trial.role for trial in state.trials.values()}
        yield from (
            (point, {"role": role}) for role, point in first_points(spec, knowledge).items() if role not in begun
        )


def tell_earlier_trials(study: optuna.Study, spec: SearchSpec, earlier: Iterable[EarlierTrial]) -> None:
    """Tell the sampler an earlier search's trials. They take numbers in the study, but are no trials of this search."""
    for one in earlier:
        study.enqueue_trial(one.point, user_attrs={"earlier": one.name})
        trial = study.ask()
        spec.parsed_space.draw(trial)
        study.tell(trial, one.values, state=STUDY_STATES[one.state])


def observed_earlier_trials(earlier: Iterable[EarlierTrial], spec: SearchSpec) -> list[ObservedTrial]:
    """The same trials for the model, with their learning curves."""
    at, tokens = [OBJECTIVES[name].kind for name in spec.objectives].index("quality"), spec.budget.tokens
    observed = []
    for place, one in enumerate(earlier):
        end = ((tokens, one.values[at]),) if one.values else ()  # a file of an earlier version has no more
        curve = tuple((int(validated), quality) for validated, quality in one.curve) or end
        if curve:
            observed.append(ObservedTrial(-2 - place, spec.parsed_space.fields_of(one.point), {}, curve))
    return observed


def _same_values(some: list[float] | None, others: list[float] | None) -> bool:
    if some is None or others is None or len(some) != len(others):
        return some is others
    return all(_same(one, other) for one, other in zip(some, others, strict=True))


def _same(one: float | None, other: float) -> bool:
    return one is not None and math.isclose(one, other, rel_tol=1e-9)
