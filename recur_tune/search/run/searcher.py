"""Optuna, told the truth.

A trial at full budget is COMPLETE, one pruned PRUNED, an error or a loss that is no number FAIL, and one whose
predicted cost breaks a limit is infeasible, decided here without taking a worker. Ray's own adapter calls nearly all
of these COMPLETE, with whatever values came last, and the sampler learns from them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import optuna
from optuna.trial import TrialState
from ray.tune.search import Searcher
from ray.tune.search.optuna import OptunaSearch

from recur_tune.common.errors import UserError
from recur_tune.config.trial import TrialConfig
from recur_tune.search.propose.candidates import NewTrial, ResumeCandidate
from recur_tune.search.propose.known_costs import KnownCosts
from recur_tune.search.propose.observations import ObservedTrial
from recur_tune.search.propose.optuna_internals import reopen
from recur_tune.search.propose.optuna_study import Proposal, first_points, make_sampler, study_name, study_storage
from recur_tune.search.record.directory import STOP, STUDY, WARM_START, SearchLog
from recur_tune.search.record.flag_file import FlagFile
from recur_tune.search.record.front import search_hypervolume
from recur_tune.search.record.objectives import OBJECTIVES
from recur_tune.search.record.progress import expected_gains
from recur_tune.search.record.requests import take_trials
from recur_tune.search.record.spec import SearchSpec
from recur_tune.search.record.state import CROWDED, ENDED, TrialRecord
from recur_tune.search.record.warm_start import read_earlier_trials
from recur_tune.search.run.gpu_sharing import SharedCards
from recur_tune.search.run.paused_trials import give_up, is_short_of_room, observed_at
from recur_tune.sites.ray.ray_tune_adaptations import StudyOnDisk

_MOST_TRIES = 200  # proposals in a row that are infeasible or known already, before the space counts as exhausted
_TRIES_BEFORE_RANDOM = 10  # of them before chance takes over from the sampler
_PLATEAU = 3  # trials in a row that are expected to add too little
KNOWN_COSTS = "known-costs"
_STUDY_STATES = {
    "complete": TrialState.COMPLETE, "pruned": TrialState.PRUNED,
    "infeasible": TrialState.PRUNED, "failed": TrialState.FAIL,
}  # fmt: skip

_Choice = NewTrial | ResumeCandidate | None


class OptunaSearcher(StudyOnDisk, OptunaSearch):
    """Proposes trials until the budget is spent; what it knows lies in the search directory."""

    def __init__(
        self,
        spec: SearchSpec,
        log: SearchLog,
        price: Callable[[TrialConfig], dict[str, float]],
        finished: Callable[[], bool] = lambda: False,
        room: Callable[[], int] | None = None,
        proposes: bool = True,
        shared: SharedCards | None = None,
    ) -> None:
        self.spec, self.log, self.price, self.finished, self.room = spec, log, price, finished, room
        self.proposes = proposes  # or only goes on with what is there
        self.shared = shared  # where trials share cards
        self.numbers: dict[str, int] = {}  # by Ray's names for the trials
        self.live: set[str] = set()  # of those, not completed yet
        storage = study_storage(log.directory.path)
        super().__init__(
            space=spec.parsed_space.draw,
            metric=list(spec.objectives),
            mode=["min"] * len(spec.objectives),
            sampler=make_sampler(spec, already=len(log.state.trials)),
            storage=storage,
            study_name=study_name(storage, log.directory.name),
        )
        if self.study.metric_names is None:  # its other tools would number the objectives
            self.study.set_metric_names(list(spec.objectives))
        if not self.study.get_trials(deepcopy=False):
            if log.state.trials:
                name = log.directory.name
                raise UserError(
                    f"name: {log.directory.path / STUDY} has lost the trials of {name}, which would be numbered anew; "
                    f"`recur-tune search … --from {name}` begins another with what is known."
                )
            self._tell_earlier_trials()
            for role, point in first_points(spec).items():
                self.study.enqueue_trial(point, user_attrs={"role": role})
        self.earlier = self._observed_earlier()
        self.open: dict[int, optuna.Trial] = {}  # in the study, not told yet
        self.unfinished = deque(self._reconcile_study())
        self.retried: set[int] = set()  # were handed out a second time
        self.added = sum("added" in trial.user_attrs for trial in self._of_study(TrialState.WAITING))  # and not asked
        self.known = [trial.params for trial in log.state.trials.values()]
        self.refused = 0  # proposals in a row
        self.own_sampler = self.study.sampler
        self.random_sampler = optuna.samplers.RandomSampler(seed=spec.sampler.seed + len(self.known))
        self.proposal: Proposal | None = None
        self.pricing = ThreadPoolExecutor(1, thread_name_prefix="pricing")
        self.model = KnownCosts(spec, price, self._config) if spec.sampler.name == KNOWN_COSTS else None
        self.choice: Future[_Choice] | None = None  # that the model is thinking about
        self.no_new_trials = False  # no new trial is worth it, or there is none
        self.all_hopeless: list[int] = []  # paused and ended trials, when none of the paused was wanted

    def _tell_earlier_trials(self) -> None:
        """Let the sampler know an earlier search's trials; they take numbers, but are none of this search's trials."""
        file = self.log.directory.path / WARM_START
        for told in read_earlier_trials(file.read_text()) if file.exists() else ():
            self.study.enqueue_trial(told.point, user_attrs={"earlier": told.name})
            trial = self.study.ask()
            self.spec.parsed_space.draw(trial)
            self.study.tell(trial, told.values, state=_STUDY_STATES[told.state])

    def _observed_earlier(self) -> list[ObservedTrial]:
        """An earlier search's trials for the model: how good they were at full budget."""
        told = [one for one in self._of_study(TrialState.COMPLETE) if "earlier" in one.user_attrs]
        at = [OBJECTIVES[name].kind for name in self.spec.objectives].index("quality")
        tokens = self.spec.budget.tokens
        return [
            ObservedTrial(-2 - place, self.spec.parsed_space.fields_of(one.params), {}, ((tokens, one.values[at]),))
            for place, one in enumerate(told)
        ]

    def _reconcile_study(self) -> list[int]:
        """Bring the study up to the log after a crash; gives the trials to go on with."""
        unfinished = [one.number for one in self.log.state.repeats.values() if one.state not in ENDED]
        for trial in self._of_study(TrialState.RUNNING):
            self.open[trial.number] = reopen(self.study, trial)
            record = self.log.state.trials.get(trial.number)
            if record is None:  # asked for and never logged, so never trained
                self.study.tell(trial.number, state=TrialState.FAIL)
            elif record.state in ENDED:
                self._tell(record)
            elif not record.paused_at_rung:
                unfinished.append(trial.number)
        return unfinished

    def _of_study(self, *states: TrialState) -> list[optuna.trial.FrozenTrial]:
        return self.study.get_trials(deepcopy=False, states=states)

    def repeat(self, trial: TrialRecord, seed: int, split: str) -> None:
        """Train a trial once more with another seed, and score it on a split. In the study it only takes a number: the
        sampler has nothing to learn from a configuration that it knows."""
        self.study.add_trial(optuna.trial.create_trial(state=TrialState.FAIL, user_attrs={"repeats": trial.number}))
        number = self._of_study(TrialState.FAIL)[-1].number
        self.log.record(
            "trial", trial=number, params=trial.params, costs=trial.costs, role=f"seed {seed} of {trial.name}",
            repeats=trial.number, seed=seed, split=split,
        )  # fmt: skip
        self.unfinished.append(number)

    def suggest(self, trial_id: str) -> Any:
        """What Ray shall run next, first what an earlier run left unfinished; None while its price is being found,
        so that nobody who reports has to wait for it."""
        if self.log.directory.stop_requested or self.finished():
            return Searcher.FINISHED
        if self.room is not None and len(self.live) >= self.room():
            return None
        if self.shared and not self.shared.have_room_beside(map(self.log.state.record, self._live_numbers)):
            return None
        self._tell_by_hand()
        while self.unfinished:
            number = self.unfinished.popleft()
            if self.log.state.record(number).state not in ENDED:  # somebody may have ended it meanwhile
                return self._job(trial_id, number)
            self._tell(self.log.state.record(number))
        for point in take_trials(self.log.directory) if self.proposes else ():
            self.study.enqueue_trial(point, user_attrs={"role": "added", "added": True})
            self.added += 1
        if self._is_spent and not (self.proposal or self.added):
            return self._resume_or_finish()
        if self.proposal is None:
            self.proposal = self._propose()
        if self.proposal is None and self.refused < _MOST_TRIES:
            return None
        if self.proposal is None:
            text = f"{_MOST_TRIES} proposals in a row were known already or over a limit; there are no more."
            self.log.record("notice", text=text, exhausted=True)
            self.no_new_trials = True
            return None
        if not self.proposal.costs.done():
            return None
        proposal, self.proposal = self.proposal, None
        return self._job(trial_id, proposal.trial.number) if self._accept(proposal) else None

    @property
    def _is_spent(self) -> bool:
        """Whether the budget has no trial left, but for those that somebody adds."""
        trials = self.spec.budget.trials
        return not self.proposes or self.no_new_trials or (trials is not None and self.log.state.trained >= trials)

    def _resume_or_finish(self) -> str | None:
        """When no new trial may begin: a paused one goes on while one is wanted. Once none is on its way, which might
        be paused too, the others are pruned."""
        if self.model is None or not self.proposes:
            return str(Searcher.FINISHED)
        trials = self.log.state.trials.values()
        paused = [one.number for one in trials if one.paused_at_rung]
        standing = [*paused, *(one.number for one in trials if one.state in ENDED), *sorted(self._live_numbers)]
        if paused and standing != self.all_hopeless:
            self.choice = self.choice or self._ask(self.model.next_resume)
            if self.choice.done():
                chosen, self.choice = self.choice.result(), None
                if isinstance(chosen, ResumeCandidate):
                    self._resume(chosen)
                else:
                    self.all_hopeless = standing
            return None
        if self.live:
            return None
        for number in paused:
            self._give_up(number, "it was paused, and not wanted until the search's end")
        return str(Searcher.FINISHED)

    def _resume(self, chosen: ResumeCandidate) -> None:
        """Let a paused trial go on next. Its folder has its checkpoint, and maybe still the request to leave."""
        self.log.record("thaw", trial=chosen.trial, gain=chosen.gain)
        FlagFile(self.log.directory.trial(chosen.trial) / STOP).clear()
        self.unfinished.append(chosen.trial)

    def _tell_by_hand(self) -> None:
        """Tell the study of paused trials that somebody has ended: Ray has nothing to say of them."""
        waiting = {*self._live_numbers, *self.unfinished}
        for number in [one for one in self.open if one not in waiting]:
            if (record := self.log.state.trials.get(number)) and record.state in ENDED:
                self._tell(record)

    def _give_up(self, number: int, reason: str) -> None:
        self._tell(give_up(self.log, number, reason))

    @property
    def should_continue(self) -> Callable[[int], bool] | None:
        """Says of a trial at a rung, by its number, whether it is worth its tokens; None where the sampler cannot."""
        model = self.model
        return None if model is None else lambda one: model.should_continue(*self._known(model), one, self._is_spent)

    @property
    def _live_numbers(self) -> set[int]:
        return {self.numbers[one] for one in self.live}

    def _known(self, model: KnownCosts) -> tuple[list[ObservedTrial], dict[str, float]]:
        """What the model is told: all trials and the reference."""
        state = self.log.state
        return [*self.earlier, *observed_at(state, self._live_numbers, model.quality)], dict(state.reference)

    def _ask(
        self, question: Callable[..., NewTrial | ResumeCandidate | None]
    ) -> Future[NewTrial | ResumeCandidate | None]:
        assert self.model is not None
        return self.pricing.submit(question, *self._known(self.model))

    def _job(self, trial_id: str, number: int) -> dict[str, Any]:
        self.numbers[trial_id] = number
        self.live.add(trial_id)
        folder = self.log.directory.trial(number)
        folder.mkdir(parents=True, exist_ok=True)
        record = self.log.state.record(number)
        config = self._config(record.params, record.seed)
        return {
            "number": number, "folder": str(folder), "trial": config.plain_values(), "split": record.split,
            **(self.shared.job(record) if self.shared else {}),
        }  # fmt: skip

    def _propose(self) -> Proposal | None:
        """Ask until a proposal is new, and send for its price; None when the space seems exhausted, or when somebody
        has added a trial that is there."""
        while self.refused < _MOST_TRIES:
            # A sampler in love with one corner of a small space proposes it again and again; chance finds the rest.
            lost = self.refused >= _TRIES_BEFORE_RANDOM
            self.study.sampler = self.random_sampler if lost else self.own_sampler
            free = not (lost or self._is_spent or self._of_study(TrialState.WAITING))  # nobody else has a say
            if self.model and free and not self._enqueue_choice(self.model):
                return None
            trial = self.study.ask()
            if self._is_spent and "added" not in trial.user_attrs:  # it waits for a larger budget
                self._put_back(trial)
                continue
            params = self.spec.parsed_space.draw(trial)
            if added := "added" in trial.user_attrs:
                self.added -= 1
            if params not in self.known:
                self.known.append(params)
                return Proposal(trial, params, self.pricing.submit(self.price, self._config(params)))
            self.study.tell(trial, state=TrialState.FAIL)
            self.refused += 1
            if added:
                same = next(one.name for one in self.log.state.trials.values() if one.params == params)
                self.log.record("notice", text=f"the trial that was added is {same} already, and not trained again.")
                return None
        return None

    def _enqueue_choice(self, model: KnownCosts) -> bool:
        """Whether the model has made up its mind, which takes it up to a second: meanwhile others want to report."""
        self.choice = self.choice or self._ask(model.choose)
        if not self.choice.done():
            return False
        chosen, self.choice = self.choice.result(), None
        if isinstance(chosen, ResumeCandidate):
            self._resume(chosen)
            return False
        if chosen is None:  # chance may find what the model does not
            return True
        if chosen.gain is not None and self._is_plateau(chosen.gain):
            return False
        self.study.enqueue_trial(chosen.point, user_attrs={"gain": chosen.gain})
        return True

    def _is_plateau(self, gain: float) -> bool:
        """Whether this and the trials chosen before it are not worth their tokens; one pool may be unlucky."""
        share, volume = self.spec.budget.plateau, search_hypervolume(self.log.state, self.spec.objectives)
        last = [*expected_gains(self.log.state), gain][-_PLATEAU:]
        if share is None or not volume or len(last) < _PLATEAU or max(last) >= share * volume:
            return False
        self.no_new_trials = True
        text = f"the next trial is expected to add {gain / volume:.2g} of the hypervolume; budget.plateau is {share:g}."
        self.log.record("notice", text=text, exhausted=True)
        return True

    def _put_back(self, trial: optuna.Trial) -> None:
        """Let a trial that was waiting wait on, behind the others."""
        [waited] = [one for one in self._of_study(TrialState.RUNNING) if one.number == trial.number]
        self.study.enqueue_trial(waited.system_attrs["fixed_params"], user_attrs=trial.user_attrs)
        self.study.tell(trial, state=TrialState.FAIL)

    def _accept(self, proposal: Proposal) -> bool:
        """Log a priced proposal; one that breaks a limit, or has no price because it cannot be trained at all, ends
        here and costs nobody a worker."""
        trial, limits = proposal.trial, self.spec.limits
        try:
            costs, refusals = proposal.costs.result(), []
        except UserError as error:
            costs, refusals, limits = {}, [str(error)], {}
        self.open[trial.number] = trial
        role = trial.user_attrs.get("role", "")
        gain = trial.user_attrs.get("gain")
        expected = {} if gain is None else {"gain": gain}
        self.log.record("trial", trial=trial.number, params=proposal.params, costs=costs, role=role, **expected)
        for name, limit in limits.items():
            trial.set_constraint(name, costs[name] / limit - 1)
            if costs[name] > limit:
                refusals.append(f"{name} {costs[name]:.4g} is over {limit:.4g}")
        if refusals:
            self.log.record("end", trial=trial.number, state="infeasible", reason=", ".join(refusals), cause="limit")
            self._tell(self.log.state.trials[trial.number])
        self.refused = self.refused + 1 if refusals else 0
        return not refusals

    def _config(self, params: dict[str, Any], seed: int | None = None) -> TrialConfig:
        return self.log.directory.with_own_base(self.spec.trial_config(params, seed))

    def on_trial_complete(self, trial_id: str, result: dict[str, Any] | None = None, error: bool = False) -> None:
        """Tell Optuna how the log says that a trial ended."""
        self.live.discard(trial_id)
        record = self.log.state.record(self.numbers[trial_id])
        if record.paused_at_rung:
            return self._make_room(record)
        if error and record.state == "paused" and record.cause == CROWDED:
            self.unfinished.append(record.number)
        elif error and record.state in ("waiting", "paused") and record.number not in self.retried:
            # Its worker died before it began: of the trial before, as a rule, and then Ray does not try another.
            self.retried.add(record.number)
            self.unfinished.append(record.number)
        elif error and record.state not in ENDED:
            self.log.record(
                "end", trial=record.number, state="failed", reason="its worker died again and again", cause="worker"
            )
        if record.state in ENDED:  # not so a paused one: its study trial stays open until it goes on
            self._tell(record)

    def _make_room(self, newest: TrialRecord) -> None:
        """Give up the paused trial that is wanted least where the disk is nearly full."""
        if self.model is not None and is_short_of_room(self.log, newest.number):
            ranked = self.model.rank_paused(*self._known(self.model))
            least = ranked[-1].trial if ranked else newest.number
            self._give_up(least, "it was paused and wanted least, and the disk has little room for checkpoints")

    def _tell(self, record: TrialRecord) -> None:
        if record.repeats is not None:
            return
        trial, state = self.open.pop(record.number), _STUDY_STATES[record.state]
        if record.state == "infeasible" and all(value <= 0 for value in trial.constraints.values()):
            trial.set_constraint("trainable", 1.0)  # no limit of the search's, but it cannot be done
        values = record.values(self.spec.objectives) if state == TrialState.COMPLETE else None
        self.study.tell(trial, values, state=state)
