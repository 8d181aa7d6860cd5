"""A decision under limits: the best trial within them, and the least increase of each that buys a better one."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TypeGuard

from recur_tune.common.errors import UserError
from recur_tune.common.parsing import nearest
from recur_tune.search.record.confirmation import Confirmation
from recur_tune.search.record.objectives import COSTS, OBJECTIVES
from recur_tune.search.record.spec import in_units
from recur_tune.search.record.state import TrialRecord


@dataclass(frozen=True)
class Upgrade:
    """A better trial with the least increase of one limited cost, within the limits on all others."""

    cost: str
    trial: TrialRecord


@dataclass(frozen=True)
class Decision:
    """The best trial within limits, and upgrades beyond one of them."""

    best: TrialRecord
    upgrades: list[Upgrade]  # one for each limited cost whose increase helps


def qualities(trials: Iterable[TrialRecord], quality: str, confirmed: Confirmation | None) -> dict[int, float]:
    """The qualities to choose by: of a front that is confirmed as a whole the means over further seeds, which have no
    selection bias; otherwise the search's own value of every complete trial."""
    if chooses_by_means(confirmed, quality):
        return {point.trial.number: point.mean for point in confirmed.points}
    found = {trial.number: trial.value(quality) for trial in trials if trial.state == "complete"}
    return {number: value for number, value in found.items() if value is not None}


def chooses_by_means(confirmed: Confirmation | None, quality: str) -> TypeGuard[Confirmation]:
    """Whether to choose by the means over further seeds. Means of some points alone would leave out the others."""
    return confirmed is not None and confirmed.quality == quality and confirmed.is_whole


def decide(
    trials: Iterable[TrialRecord], known_qualities: Mapping[int, float], limits: Mapping[str, float]
) -> Decision | None:
    """The best trial within the limits, and its upgrades; None where no trial is within them."""
    known = [trial for trial in trials if trial.number in known_qualities]
    for name in limits:
        if any(name not in trial.costs for trial in known):
            raise UserError(f"under: some trials were priced before there was {name}; limit another cost.")

    def value(trial: TrialRecord) -> float:
        return known_qualities[trial.number]

    best = min(
        (trial for trial in known if _within(trial, limits)),
        key=lambda trial: (value(trial), trial.costs_of(limits), trial.number),
        default=None,
    )
    if best is None:
        return None
    upgrades = []
    for cost in limits:
        others = {name: limit for name, limit in limits.items() if name != cost}
        better = [trial for trial in known if value(trial) < value(best) and _within(trial, others)]
        if better:
            upgrades.append(
                Upgrade(cost, min(better, key=lambda trial: (trial.costs[cost], value(trial), trial.number)))
            )
    return Decision(best, upgrades)


class Limit(float):
    """A number that remembers how a person wrote it: 20MB are 19.1 MiB, which nobody would recognise."""

    written: str

    @classmethod
    def written_as(cls, number: float, text: str) -> Limit:
        """The number that a text means."""
        limit = cls(number)
        limit.written = text
        return limit


def read_limits(text: str) -> dict[str, float]:
    """Parse limits such as `flops_per_token=55M,peak_memory=10GiB`."""
    limits: dict[str, float] = {}
    for part in filter(None, (part.strip() for part in text.split(","))):
        name, equals, value = (piece.strip() for piece in part.partition("="))
        if not equals or not value:
            raise UserError(f"under: {part!r} is not of the form COST=VALUE, as flops_per_token=55M.")
        if name not in COSTS:
            raise UserError(f"under: {name!r} is no cost; {nearest(name, COSTS)}")
        if name in limits:
            raise UserError(f"under: {name} stands twice in {text!r}; give it once.")
        try:
            limits[name] = Limit.written_as(in_units(name, value), value)
        except ValueError as error:
            raise UserError(f"under: it {error}.") from None
        if not limits[name] > 0:
            raise UserError(f"under: {name} {value} leaves nothing; give a positive number.")
    if not limits:
        raise UserError("under: it names no cost; give some as flops_per_token=55M,peak_memory=10GiB.")
    return limits


def limits_in_words(limits: Mapping[str, float]) -> str:
    """Limits as text, in the words in which a person wrote them: `FLOPs/token 55M and peak memory 20MB`."""
    return " and ".join(f"{OBJECTIVES[name].title} {_in_words(name, limit)}" for name, limit in limits.items())


def _in_words(name: str, limit: float) -> str:
    return limit.written if isinstance(limit, Limit) else OBJECTIVES[name].format(limit)


def refuse_limits(trials: Iterable[TrialRecord], limits: Mapping[str, float]) -> UserError:
    """The error where no trial is within the limits; it names the least value of each cost."""
    complete = [trial for trial in trials if trial.state == "complete"]
    if not complete:
        return UserError("under: no trial has reached the full budget yet, so there is none to choose from.")
    least = {name: min(trial.costs[name] for trial in complete) for name in limits}
    short = {name: value for name, value in least.items() if value > limits[name]}
    if short:
        least_of_all = limits_in_words(short)
        return UserError(
            f"under: no trial is within {limits_in_words(limits)}; the least at full budget is {least_of_all}."
        )
    return UserError(f"under: no trial is within {limits_in_words(limits)} at once; allow more of one of them.")


def _within(trial: TrialRecord, limits: Mapping[str, float]) -> bool:
    return all(trial.costs[name] <= limit for name, limit in limits.items())
