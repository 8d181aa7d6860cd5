"""Names that Optuna does not promise: a failure here says which of them a new version has changed."""

from __future__ import annotations

from pathlib import Path

import optuna
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend

from recur_tune.search.propose.optuna_internals import NoLock, reopen


def test_a_trial_is_opened_again_by_its_id() -> None:
    study = optuna.create_study()
    asked = study.ask()
    again = reopen(study, study.trials[0])
    assert again.number == asked.number, "FrozenTrial._trial_id no longer leads to the trial"
    assert 0 <= again.suggest_float("x", 0, 1) <= 1, "optuna.Trial(study, id) no longer goes on with a trial"
    study.tell(again, 3.0)
    assert study.trials[0].value == 3.0


def test_a_journal_asks_its_lock_to_acquire_and_release(tmp_path: Path) -> None:
    asked = []

    class Told(NoLock):
        def acquire(self) -> bool:
            asked.append("acquire")
            return super().acquire()

        def release(self) -> None:
            asked.append("release")

    storage = JournalStorage(JournalFileBackend(str(tmp_path / "journal"), lock_obj=Told()))
    optuna.create_study(storage=storage).add_trial(optuna.trial.create_trial(value=1.0))
    assert asked[:2] == ["acquire", "release"], "JournalFileBackend takes another kind of lock_obj"
    assert set(asked) == {"acquire", "release"} and len(asked) % 2 == 0
    assert [path.name for path in tmp_path.iterdir()] == ["journal"], "it makes a lock file all the same"
