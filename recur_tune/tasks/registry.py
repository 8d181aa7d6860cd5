"""Registry of tasks: built-in ones, and those of installed packages. The corpus decides which one a trial is for.

A new one is a folder in here and a line in `_OURS`, or a package with an entry point in the group `recur_tune.tasks`
that names a `Task`. Its fields become flags, keys of YAML files and parameters of spaces.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping

from pydantic.fields import FieldInfo

from recur_tune.common.registry import Registry, check_fields, check_problems, refused_fields
from recur_tune.data.corpora import registry as corpora
from recur_tune.data.corpora.kind import CorpusKind
from recur_tune.tasks.forecasting.spec import FORECASTING
from recur_tune.tasks.language_modelling.spec import LANGUAGE_MODELLING
from recur_tune.tasks.question_answering.spec import QUESTION_ANSWERING
from recur_tune.tasks.task import Quality, Task, Teacher

__all__ = ["FIELDS", "REGISTRY", "TASKS", "Quality", "Task", "Teacher", "check", "fields_of", "task_of"]

_OURS = (LANGUAGE_MODELLING, QUESTION_ANSWERING, FORECASTING)


def _refusal(task: Task, known: Mapping[str, Task]) -> str | None:
    """Qualities and fields have one meaning among all tasks."""
    titles = {quality.name: (quality.title, one.name) for one in known.values() for quality in one.qualities}
    for quality in task.qualities:
        title, owner = titles.get(quality.name, (quality.title, ""))
        if title != quality.title:
            return f"has a quality {quality.name!r} of another title than that of {owner!r}"
    return refused_fields(task.spec, {name: one.spec for name, one in known.items()})


REGISTRY = Registry("task", "recur_tune.tasks", Task, _OURS, _refusal)
TASKS, _PROBLEMS = REGISTRY.load()

# Every field that belongs to a task.
FIELDS: dict[str, FieldInfo] = {
    name: field for task in TASKS.values() for name, field in task.spec.model_fields.items()
}


def check(reserved: Collection[str]) -> None:
    """Refuse to go on beside an installed task or corpus that cannot be used; `reserved` are the other fields of a
    trial."""
    corpora.check()
    check_problems(_PROBLEMS)
    check_problems(homeless(corpora.CORPORA.values()))
    check_fields(REGISTRY.noun, {name: one.spec for name, one in TASKS.items()}, reserved)


def homeless(kinds: Iterable[CorpusKind]) -> Iterator[str]:
    """One sentence for each corpus whose task is not installed."""
    for kind in kinds:
        if kind.task not in TASKS:
            yield (
                f"corpus: {kind.name!r} is for the task {kind.task!r}, which is not installed; these are: "
                f"{', '.join(TASKS)}."
            )


def task_of(corpus: str) -> Task:
    """What a corpus is for, by its name as users write it; a name that no corpus has is refused when it is opened."""
    kind = corpora.kind_of(corpus)
    return TASKS.get(kind.task, LANGUAGE_MODELLING) if kind else LANGUAGE_MODELLING


def fields_of(corpus: str) -> frozenset[str]:
    """The fields of a corpus's task."""
    return frozenset(task_of(corpus).spec.model_fields)
