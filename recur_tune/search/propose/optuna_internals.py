"""What Optuna does not promise and a search needs: each name that may change without notice stands here alone.

`tests/search/propose/test_optuna_internals.py` says which of them has changed.
"""

from __future__ import annotations

import optuna


def reopen(study: optuna.Study, trial: optuna.trial.FrozenTrial) -> optuna.Trial:
    """A trial that an earlier process asked for, to be told by this one."""
    return optuna.Trial(study, trial._trial_id)


class NoLock:
    """The lock of a journal that has one writer anyway: what Optuna calls of it, and nothing more.

    The search's own lock sees to that; a lock file of Optuna's would outlive a process that is killed, and hang whoever
    resumes.
    """

    def acquire(self) -> bool:
        """Always ours."""
        return True

    def release(self) -> None:
        """Kept."""
