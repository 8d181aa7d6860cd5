"""Tasks: one folder a task. A package that brings one imports its description's parts from here."""

from recur_tune.tasks.task import Quality, Task, next_token_head

__all__ = ["Quality", "Task", "next_token_head"]
