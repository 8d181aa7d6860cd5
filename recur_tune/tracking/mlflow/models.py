"""Models of the front as MLflow's logged models: each with its run, parameters, metrics and folder.

The weights stay in the folder: models have gigabytes, and MLflow would keep a copy of each that was ever on the front.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from recur_tune.search.record.directory import MODEL, SearchDirectory
from recur_tune.search.record.front import front
from recur_tune.search.record.spec import SearchSpec
from recur_tune.search.record.state import SearchState, TrialRecord
from recur_tune.search.record.subject import trial_params
from recur_tune.search.record.tracking_place import NOTE, Delivered
from recur_tune.tracking.mlflow.calls import all_pages, is_active, log_run
from recur_tune.tracking.mlflow.description import trial_note
from recur_tune.tracking.mlflow.run_updates import RunUpdate

if TYPE_CHECKING:  # importing MLflow takes seconds
    from mlflow import MlflowClient
    from mlflow.entities import LoggedModel

_SEARCH, _TRIAL = "recur_tune.search_id", "recur_tune.trial"
_NOT_IN_A_NAME = re.compile(r"[/:.%\"']")  # MLflow's rule
_GONE = "removed: only models on the front are kept"


class FrontModels:
    """The logged models of one search."""

    def __init__(
        self, client: MlflowClient, directory: SearchDirectory, spec: SearchSpec, delivered: Delivered
    ) -> None:
        self.client, self.directory, self.spec, self.delivered = client, directory, spec, delivered

    def deliver(self, state: SearchState) -> None:
        """Log the front's models that MLflow does not have completely, and tag those that left the front.

        MLflow is asked what it has, so nothing is recorded here.
        """
        best = {trial.number: trial for trial in front(state.trials.values(), self.spec.objectives)}
        there = self._there()
        for number, trial in best.items():
            whole = number in there and there[number].status == "READY"
            if not whole and (self.directory.trial(number) / MODEL).is_dir():
                self._log(trial, there.get(number))
        for number, model in there.items():
            if model.tags.get("pareto") != _word(number in best):
                tags = self._tags(state.trials[number], number in best)
                self.client.set_logged_model_tags(model.model_id, tags)

    def _there(self) -> dict[int, LoggedModel]:
        """The search's models at the server, by the trials' numbers."""
        experiments, condition = [self.delivered.experiment], f"tags.`{_SEARCH}` = '{self.directory.identity['id']}'"
        models = all_pages(lambda token: self.client.search_logged_models(experiments, condition, page_token=token))
        return {int(model.tags[_TRIAL]): model for model in models}

    def _log(self, trial: TrialRecord, model: LoggedModel | None) -> None:
        run = self.delivered.runs.get(trial.number)
        if run is None or not is_active(self.client, run):  # a user deleted the run, so its model is not wanted
            return
        if model is None:
            model = self._create(trial, run)
        update = RunUpdate()
        update.add(trial.costs, {"time": trial.started}, step=0)
        update.add(trial.metrics, {"time": trial.ended}, step=trial.tokens)
        log_run(self.client, run, update.points, model=model.model_id)  # which has them already, at the same times
        self._link(run, model, trial.tokens)
        self.client.finalize_logged_model(model.model_id, "READY")

    def _create(self, trial: TrialRecord, run: str) -> LoggedModel:
        config = self.spec.trial_config(trial.params)
        tags = self._tags(trial, on_front=True) | {
            "search": self.directory.name, _SEARCH: self.directory.identity["id"], _TRIAL: str(trial.number),
            "mlflow.model.isExternal": "true",
        }  # fmt: skip
        return self.client.create_logged_model(
            self.delivered.experiment,
            name=_NOT_IN_A_NAME.sub("-", f"{self.directory.name}-{trial.name}"),
            source_run_id=run,
            tags=tags,
            params={name: str(value) for name, value in trial_params(self.spec, trial).items() if value is not None},
            model_type="plain" if config.mechanism is None else f"recurrent ({config.recurrence})",
        )

    def _link(self, run: str, model: LoggedModel, tokens: int) -> None:
        """Link the run to the model; MLflow refuses a second link."""
        from mlflow.entities import LoggedModelOutput

        outputs = self.client.get_run(run).outputs
        if all(output.model_id != model.model_id for output in (outputs.model_outputs if outputs else [])):
            self.client.log_outputs(run, [LoggedModelOutput(model.model_id, tokens)])

    def _tags(self, trial: TrialRecord, on_front: bool) -> dict[str, str]:
        """Tags that change when a trial leaves the front."""
        folder = self.directory.trial(trial.number).absolute() / MODEL
        note = trial_note(self.directory, self.spec, trial, on_front, self.delivered.page(self.delivered.parent))
        return {
            "pareto": _word(on_front), "recur_tune.folder": str(folder) if folder.is_dir() else _GONE, NOTE: note,
        }  # fmt: skip


def _word(on_front: bool) -> str:
    return str(on_front).lower()
