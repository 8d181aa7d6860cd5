"""Descriptions of a search and its trials for MLflow's pages: Markdown, made from the log alone."""

from __future__ import annotations

import re
import shlex
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

from recur_tune.common.units import counted, format_count, format_duration
from recur_tune.config.fields import own_values, train_command
from recur_tune.search.record.directory import SearchDirectory
from recur_tune.search.record.front import front, search_hypervolume
from recur_tune.search.record.objectives import OBJECTIVES
from recur_tune.search.record.spec import SearchSpec
from recur_tune.search.record.state import SearchState, TrialRecord
from recur_tune.search.record.subject import bases_of, corpus_of
from recur_tune.search.record.tracking_place import FIGURE, SMALL_PICTURE, Delivered
from recur_tune.tracking.mlflow.views import FRONT, TRIALS, view_address

_MOST_OF_A_NOTE = 8000  # characters: MLflow cuts longer ones off
_MOST_OF_A_REASON = 240  # the log has the rest
_MOST_COMPARED = 20  # runs side by side; more do not fit on a screen
_STATUS = {
    "new": "It has not begun",
    "preparing": "Being prepared",
    "started": "Running",
    "paused": "Paused",
    "finished": "Finished",
}


def search_note(directory: SearchDirectory, spec: SearchSpec, state: SearchState, delivered: Delivered) -> str:
    """A search's description: objectives, progress, front, next commands."""
    best = front(state.trials.values(), spec.objectives)
    # MLflow shows a few lines until the reader expands it, and only the first line's links work before.
    head = ["\n".join([" · ".join(_links(delivered, best)), _subject(spec), _progress(spec, state)])]
    tail = [*_next_commands(directory, spec, state), "*recur-tune rewrites this while the search runs.*"]
    if not best:
        return "\n\n".join([*head, "No trial is on the front yet.", *tail])
    picture = [f"![The front]({delivered.image(SMALL_PICTURE)})"] if delivered.pictured else []
    title = f"### The front: {len(best)} of {len(state.trials)} trials"
    left = _MOST_OF_A_NOTE - sum(len(part) + 2 for part in [*head, title, *picture, *tail])
    return "\n\n".join([*head, title, *picture, _table(spec, best, delivered, left), *tail])


def trial_note(directory: SearchDirectory, spec: SearchSpec, trial: TrialRecord, best: bool, parent: str) -> str:
    """A trial's description: parameters, how it ended and, on the front, how to train or export it."""
    chosen = _chosen(_params(spec, trial))
    lines = [f"Trial {trial.name}{_role(trial)} of [{directory.name}]({parent}){f': {chosen}' if chosen else ''}."]
    reason = " ".join(trial.reason.split())[:_MOST_OF_A_REASON]
    reached = _reached(trial, spec.objectives)
    lines.append(
        f"{trial.state.capitalize()}{f' ({_code(reason)})' if reason else ''}"
        f"{f': {reached}' if reached else ''}{'; **on the front**' if best else ''}."
    )
    if best:
        config = directory.with_own_base(spec.trial_config(trial.params))
        commands = [train_command(config, Path("runs") / f"{directory.name}-{trial.name}")]
        if spec.keep != "none":
            where = _typed("export", directory)
            commands.append(f"{where} --trial {trial.name} --to models/{directory.name}-{trial.name}")
        lines.append("\n".join(["Train it again, or take its model:", "```", *commands, "```"]))
    return "\n\n".join(lines)


def _subject(spec: SearchSpec) -> str:
    bases = ", ".join(map(_code, bases_of(spec)))
    titles = [OBJECTIVES[name].title for name in spec.objectives]
    budget = [f"{format_count(spec.budget.tokens)} tokens a trial"]
    if spec.budget.trials is not None:
        budget.append(counted(spec.budget.trials, "trial"))
    if spec.budget.wall_clock is not None:
        budget.append(f"{format_duration(spec.budget.wall_clock)} in all")
    return (
        f"A search for {', '.join(titles[:-1])} and {titles[-1]} over {', '.join(spec.parsed_space.names)}: "
        f"{bases} on {_code(corpus_of(spec))}, {', '.join(budget)}."
    )


def _progress(spec: SearchSpec, state: SearchState) -> str:
    counts = Counter(trial.state for trial in state.trials.values())
    of = f" of {spec.budget.trials}" if spec.budget.trials is not None else ""
    status = _STATUS.get(state.status, state.status)
    if state.status == "preparing" and state.stage:
        status = f"Being prepared ({_code(state.stage)})"
    words = [f"{status}: {state.trained}{of} trials"]
    if counts:
        words[0] += f" ({', '.join(f'{count} {name}' for name, count in counts.most_common())})"
    words.append(f"{format_count(sum(trial.tokens for trial in state.trials.values()))} tokens trained on")
    volume = search_hypervolume(state, spec.objectives)
    if volume is not None:
        words.append(f"hypervolume {volume:.4g}")
    return f"{', '.join(words)}."


def _table(spec: SearchSpec, best: Sequence[TrialRecord], delivered: Delivered, room: int) -> str:
    """The front as far as it fits, best quality first."""
    params = [_params(spec, trial) for trial in best]
    telling = _telling_apart(params)
    titles = ["trial", *(OBJECTIVES[name].title for name in spec.objectives), "chosen"]
    lines = [f"| {' | '.join(titles)} |", f"|---|{'---:|' * len(spec.objectives)}---|"]
    room -= len("\n".join(lines)) + 100  # for the words about what is left out
    for at, trial in enumerate(best):
        chosen = {name: value for name, value in params[at].items() if name in telling}
        line = f"| {' | '.join([*_row(spec, trial, delivered), _chosen(chosen)])} |"
        room -= len(line) + 1
        if room < 0:
            return "\n".join([*lines, f"\n… and {len(best) - at} more on the front."])
        lines.append(line)
    return "\n".join(lines)


def _row(spec: SearchSpec, trial: TrialRecord, delivered: Delivered) -> Iterator[str]:
    run = delivered.runs.get(trial.number)
    yield f"{f'[{trial.name}]({delivered.page(run)})' if run else trial.name}{_role(trial)}"
    for name, value in zip(spec.objectives, trial.values(spec.objectives) or (), strict=True):
        yield OBJECTIVES[name].format(value)


def _links(delivered: Delivered, best: Sequence[TrialRecord]) -> Iterator[str]:
    yield f"[every trial]({view_address(delivered, TRIALS)})"
    if best:
        yield f"[the front]({view_address(delivered, FRONT)})"
    runs = [delivered.runs[trial.number] for trial in best if trial.number in delivered.runs]
    if 2 <= len(runs) <= _MOST_COMPARED:
        listed = quote(f"[{','.join(f'{chr(34)}{run}{chr(34)}' for run in runs)}]")
        experiments = quote(f'["{delivered.experiment}"]')
        yield f"[side by side](#/compare-runs?runs={listed}&experiments={experiments})"
    if delivered.pictured:
        yield f"[the figure to explore]({delivered.artifact(FIGURE)})"


def _next_commands(directory: SearchDirectory, spec: SearchSpec, state: SearchState) -> list[str]:
    lines = [_typed("status", directory), _typed("report", directory)]
    if state.status in ("preparing", "started"):
        lines.append(_typed("stop", directory))
    elif state.status == "finished":
        lines.append(f"{_typed('resume', directory)} --trials {2 * (spec.budget.trials or state.trained)}")
    else:
        lines.append(_typed("resume", directory))
    return ["### Next", "\n".join(["```", *lines, "```"])]


def _typed(command: str, directory: SearchDirectory) -> str:
    """A command that works from any folder of the machine."""
    return shlex.join(["recur-tune", command, directory.name, "--results", str(directory.path.absolute().parent)])


def _reached(trial: TrialRecord, objectives: Iterable[str]) -> str:
    words = [f"{format_count(trial.tokens)} tokens"] if trial.tokens else []
    for name in objectives:
        if (value := trial.value(name)) is not None:
            words.append(f"{OBJECTIVES[name].title} {OBJECTIVES[name].format(value)}")
    return ", ".join(words)


def _params(spec: SearchSpec, trial: TrialRecord) -> dict[str, Any]:
    """The chosen parameters that apply to a trial."""
    return own_values(trial.params.get("recurrence", spec.parsed_space.field("recurrence")), trial.params)


def _telling_apart(params: Sequence[Mapping[str, Any]]) -> set[str]:
    """The parameters in which trials differ; of one alone, all."""
    names = {name for one in params for name in one}
    return {name for name in names if len(params) == 1 or len({str(one.get(name)) for one in params}) > 1}


def _chosen(params: Mapping[str, Any]) -> str:
    """Parameters in a line."""
    return ", ".join(f"{name} {_plain(value)}" for name, value in params.items())


def _role(trial: TrialRecord) -> str:
    return f" ({trial.role})" if trial.role else ""


def _plain(value: object) -> str:
    """A value escaped for Markdown."""
    text = f"{value:.3g}" if isinstance(value, float) else str(value)
    return text if re.fullmatch(r"[\w.+-]*", text) else _code(text)


def _code(text: str) -> str:
    return f"`{text.replace('`', chr(39)).replace('|', '/')}`"
