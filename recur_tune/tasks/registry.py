"""Registry of tasks: what a model may be trained for. The corpus decides: a text is continued, a question answered."""

from __future__ import annotations

from functools import cache

from pydantic.fields import FieldInfo

from recur_tune.tasks.language_modelling.spec import NEXT_TOKENS
from recur_tune.tasks.question_answering.spec import ANSWERS
from recur_tune.tasks.task import Quality, Task

__all__ = ["FIELDS", "TASKS", "Quality", "Task", "fields_of", "task_of"]

TASKS = (NEXT_TOKENS, ANSWERS)

# Every field that belongs to a task.
FIELDS: dict[str, FieldInfo] = {name: field for task in TASKS for name, field in task.spec.model_fields.items()}


@cache
def task_of(corpus: str) -> Task:
    """What a corpus is for, by its name as users write it."""
    kind = corpus.partition(":")[0]
    named = (task for task in TASKS if task.corpora is not None and kind in task.corpora)
    return next(named, next(task for task in TASKS if task.corpora is None))


def fields_of(corpus: str) -> frozenset[str]:
    """The fields of a corpus's task."""
    return frozenset(task_of(corpus).spec.model_fields)
