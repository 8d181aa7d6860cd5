"""The searcher: proposes trials to Ray Tune, and tells Optuna how each of them ended.

In Optuna's study a trial at full budget is COMPLETE, a pruned one PRUNED, and one with an error or a loss that is not
finite FAIL. A trial whose predicted cost breaks a limit is infeasible; it never takes a worker.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cached_property
from typing import Any

import optuna
from optuna.trial import TrialState
from ray.tune.search import Searcher
from ray.tune.search.optuna import OptunaSearch

from recur_tune.cluster.ray_tune_adaptations import StudyOnDisk
from recur_tune.common.errors import UserError
from recur_tune.common.throttle import Every
from recur_tune.common.units import counted
from recur_tune.config.trial import TrialConfig
from recur_tune.search.propose.candidates import NewTrial, ResumeCandidate
from recur_tune.search.propose.known_costs import KnownCosts
from recur_tune.search.propose.look_ahead import look_ahead
from recur_tune.search.propose.observations import ObservedTrial, observed_state
from recur_tune.search.propose.optuna_study import (
    Proposal,
    first_points,
    make_sampler,
    reopen,
    study_name,
    study_storage,
)
from recur_tune.search.propose.outlook import Outlook
from recur_tune.search.propose.plateau import plateau
from recur_tune.search.propose.study_agreement import (
    observed_earlier_trials,
    tell,
    tell_earlier_trials,
)
from recur_tune.search.record.directory import STOP, SearchLog
from recur_tune.search.record.flag_file import FlagFile
from recur_tune.search.record.knowledge import knowledge_of
from recur_tune.search.record.recovery import note_trial
from recur_tune.search.record.requests import RIVAL, take_trials
from recur_tune.search.record.spec import KNOWN_COSTS, SearchSpec
from recur_tune.search.record.state import CROWDED, ENDED, TrialRecord
from recur_tune.search.run.gpu_sharing import SharedCards
from recur_tune.search.run.trial_files import is_short_of_room, prune_paused

_MOST_TRIES = 200  # proposals in a row that are infeasible or known, before the space counts as exhausted
_TRIES_BEFORE_RANDOM = 10  # of these tries, before points are drawn at random
_SECONDS_BETWEEN_LOOKS = 0.5
_FIRST_LEANINGS = 4  # validated trials before it is told which earlier searches help
_Choice = NewTrial | ResumeCandidate | None


class OptunaSearcher(StudyOnDisk, OptunaSearch):
    """Proposes trials until the budget is spent. All of its state is in the search directory."""

    def __init__(
        self,
        spec: SearchSpec,
        log: SearchLog,
        price: Callable[[TrialConfig], dict[str, float]],
        finished: Callable[[], bool] = lambda: False,
        room: Callable[[], int] | None = None,
        proposes: bool = True,
        shared: SharedCards | None = None,
        workers: Callable[[TrialConfig], int] = lambda config: 1,
    ) -> None:
        self.spec, self.log, self.price, self.finished, self.room = spec, log, price, finished, room
        self.proposes = proposes  # False: only repeats and plain rivals are trained; other trials wait for it
        self.shared = shared  # where trials share GPUs
        self.workers = workers  # how many train a trial together
        self.numbers: dict[str, int] = {}  # trials' numbers by Ray's ids
        self.live: set[str] = set()  # Ray's ids of trials that it has not completed
        storage = study_storage(log.directory.path)
        super().__init__(
            space=spec.parsed_space.draw,
            metric=list(spec.objectives),
            mode=["min"] * len(spec.objectives),
            sampler=make_sampler(spec, already=len(log.state.trials)),
            storage=storage,
            study_name=study_name(storage, log.directory.name),
        )
        if self.study.metric_names is None:  # Optuna's other tools show them
            self.study.set_metric_names(list(spec.objectives))
        knowledge = knowledge_of(log.directory)
        if not self.study.get_trials(deepcopy=False):
            tell_earlier_trials(self.study, spec, knowledge.told)
            for role, point in first_points(spec, knowledge).items():
                self.study.enqueue_trial(point, user_attrs={"role": role})
        self.earlier = observed_earlier_trials(knowledge.told, spec)
        self.open: dict[int, optuna.Trial] = {}  # trials of the study without an end
        self.unfinished = deque(self._reconcile_study())
        self.retried: set[int] = set()  # trials that were handed out a second time
        # Requested by a person, and not asked for yet.
        self.added = sum("added" in trial.user_attrs for trial in self._of_study(TrialState.WAITING))
        self.known = [trial.params for trial in log.state.trials.values()]
        self.refused = 0  # proposals in a row that were infeasible or known
        self.own_sampler = self.study.sampler
        self.random_sampler = optuna.samplers.RandomSampler(seed=spec.sampler.seed + len(self.known))
        self.proposal: Proposal | None = None
        self.aside: Proposal | None = None  # one that was made before a person requested another trial
        self.due = Every(_SECONDS_BETWEEN_LOOKS)  # at requests, which lie on a file system
        self.pricing = ThreadPoolExecutor(1, thread_name_prefix="pricing")
        known_costs = spec.sampler.name == KNOWN_COSTS
        self.model = KnownCosts(spec, price, self._config, knowledge.searches) if known_costs else None
        self.next_leanings = _FIRST_LEANINGS
        self.choice: Future[_Choice] | None = None  # being computed in the pricing thread
        self.no_new_trials = False  # the space is exhausted, or the gain has reached a plateau
        self.all_hopeless: list[int] = []  # the standing of trials in which no paused one may reach the front

    def _reconcile_study(self) -> list[int]:
        """Bring the study up to date with the log after a crash; gives the trials to continue."""
        unfinished = [one.number for one in self.log.state.repeats.values() if one.state not in ENDED]
        for trial in self._of_study(TrialState.RUNNING):
            self.open[trial.number] = reopen(self.study, trial)
            record = self.log.state.trials.get(trial.number)
            if record is None:  # asked for and not logged, so not trained
                self.study.tell(trial.number, state=TrialState.FAIL)
            elif record.state in ENDED:
                self._tell(record)
            elif not record.paused_at_rung and (self.proposes or record.role == RIVAL):
                unfinished.append(trial.number)
        return unfinished

    def _of_study(self, *states: TrialState) -> list[optuna.trial.FrozenTrial]:
        return self.study.get_trials(deepcopy=False, states=states)

    def repeat(self, trial: TrialRecord, seed: int, split: str) -> None:
        """Repeat a trial with another seed, and score it on a split. In the study it only takes a number: the sampler
        knows the configuration already."""
        self.study.add_trial(optuna.trial.create_trial(state=TrialState.FAIL, user_attrs={"repeats": trial.number}))
        number = self._of_study(TrialState.FAIL)[-1].number
        self.log.record(
            "trial", trial=number, params=trial.params, costs=trial.costs, role=f"seed {seed} of {trial.name}",
            repeats=trial.number, seed=seed, split=split,
        )  # fmt: skip
        self.unfinished.append(number)

    def add(self, point: dict[str, Any], role: str) -> None:
        """Train this point next, in the sampler's own names, whatever the budget."""
        self.study.enqueue_trial(point, user_attrs={"role": role, "added": True})
        self.added += 1

    def suggest(self, trial_id: str) -> Any:
        """The next trial for Ray, unfinished ones first. None while its costs are computed, so that reports of other
        trials need not wait."""
        if self.log.directory.stop_requested or self.finished():
            return Searcher.FINISHED
        room = math.inf if self.room is None else self.room()
        if self.proposes and (len(self.live) < room or self.due()):
            self._take_requests()
        # A requested trial need not wait for room: the scheduler starts it before all that wait for a worker.
        if len(self.live) >= room + bool(self.added or self._is_added(self.proposal)):
            return None
        live = [self.log.state.record(number) for number in self._live_numbers]
        if not (self.shared.have_room_beside(live) if self.shared else self._starves_nobody(live)):
            return None
        self._tell_by_hand()
        while self.unfinished and not (self.added or self._is_added(self.proposal)):
            number = self.unfinished.popleft()
            # It may have been ended by hand meanwhile.
            if self.log.state.record(number).state not in ENDED and (job := self._job(trial_id, number)):
                return job
            self._tell(self.log.state.record(number))
        if self._is_spent and not (self.proposal or self.aside or self.added):
            return self._resume_or_finish()
        if self.added and self.proposal and not self._is_added(self.proposal):
            self.aside, self.proposal = self.proposal, None
        if self.proposal is None and not self.added:
            self.proposal, self.aside = self.aside, None
        if self.proposal is None:
            self.proposal = self._propose()
        if self.proposal is None and self.refused < _MOST_TRIES:
            return None
        if self.proposal is None:
            self._exhaust(f"{_MOST_TRIES} proposals in a row were known already or over a limit; there are no more.")
            return None
        if not self.proposal.costs.done():
            return None
        proposal, self.proposal = self.proposal, None
        return self._job(trial_id, proposal.trial.number) if self._accept(proposal) else None

    def _take_requests(self) -> None:
        for point, role in take_trials(self.log):
            self.add(point, role)

    @staticmethod
    def _is_added(proposal: Proposal | None) -> bool:
        """Whether it is a trial that a person requested."""
        return proposal is not None and "added" in proposal.trial.user_attrs

    def _starves_nobody(self, live: Iterable[TrialRecord]) -> bool:
        """Whether no trial waits for more workers than others may have: smaller ones would overtake it again and
        again."""
        fewest = self.spec.resources.worker_counts[0]
        return not any(trial.workers > fewest and trial.state != "running" for trial in live)

    @property
    def _is_spent(self) -> bool:
        """Whether the budget of trials is spent; trials that a person requests are beyond it."""
        trials = self.spec.budget.trials
        return not self.proposes or self.no_new_trials or (trials is not None and self.log.state.trained >= trials)

    def _resume_or_finish(self) -> str | None:
        """When no new trial may begin: resume a paused one while one may reach the front. Once no trial runs, since
        that could still be paused, the remaining ones are pruned and the search ends."""
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
            self._prune_paused(number, "it was paused at a rung, and its chance of ending on the front stayed small")
        return str(Searcher.FINISHED)

    def _resume(self, chosen: ResumeCandidate) -> None:
        """Resume a paused trial next, from the checkpoint in its folder. The request to leave may still be set
        there."""
        self.log.record("thaw", trial=chosen.trial, gain=chosen.gain)
        FlagFile(self.log.directory.trial(chosen.trial) / STOP).clear()
        self.unfinished.append(chosen.trial)

    def _tell_by_hand(self) -> None:
        """Tell the study of paused trials that were ended by hand: Ray no longer has them."""
        waiting = {*self._live_numbers, *self.unfinished}
        for number in [one for one in self.open if one not in waiting]:
            if (record := self.log.state.trials.get(number)) and record.state in ENDED:
                self._tell(record)

    def _prune_paused(self, number: int, reason: str) -> None:
        self._tell(prune_paused(self.log, number, reason))

    @property
    def should_continue(self) -> Callable[[int], bool] | None:
        """Decides on a trial at a rung, by its number; None where the sampler has no model for that."""
        model = self.model
        return None if model is None else lambda one: model.should_continue(*self._known(model), one, self._is_spent)

    @property
    def _live_numbers(self) -> set[int]:
        return {self.numbers[one] for one in self.live}

    def _known(self, model: KnownCosts) -> tuple[list[ObservedTrial], dict[str, float]]:
        """The model's arguments: all trials and the reference."""
        state = self.log.state
        return [*self.earlier, *observed_state(state, self._live_numbers, model.quality)], dict(state.reference)

    def look_ahead(self) -> Future[Outlook | None] | None:
        """Begin an outlook in the pricing thread; None where the sampler has no model."""
        if self.model is None or not self.proposes:
            return None
        budget, state = self.spec.budget.trials, self.log.state
        left = 0 if self.no_new_trials else math.inf if budget is None else budget - state.trained
        trained = {number: state.record(number).tokens for number in self._live_numbers}
        return self.pricing.submit(look_ahead, self.model, *self._known(self.model), trained, left)

    def _ask(self, question: Callable[..., _Choice]) -> Future[_Choice]:
        assert self.model is not None
        return self.pricing.submit(question, *self._known(self.model))

    def _job(self, trial_id: str, number: int) -> dict[str, Any] | None:
        """The trial's job for Ray. None, and its end, where it fits no number of workers any more."""
        record = self.log.state.record(number)
        config = self._config(record.params, record.seed)
        try:
            workers = self.workers(config)
        except UserError as error:  # the search is resumed with other resources
            self.log.record("end", trial=number, state="infeasible", reason=str(error), cause="limit")
            return None
        if workers != record.workers:
            self.log.record("workers", trial=number, workers=workers)
        self.numbers[trial_id] = number
        self.live.add(trial_id)
        folder = self.log.directory.trial(number)
        self.log.directory.check_lease()
        folder.mkdir(parents=True, exist_ok=True)
        note_trial(folder, record)
        return {
            "number": number, "folder": str(folder), "trial": config.plain_values(), "split": record.split,
            "workers": workers, "shard": workers > 1 and self.spec.resources.shard != "none",
            **(self.shared.job(record) if self.shared else {}),
        }  # fmt: skip

    def _propose(self) -> Proposal | None:
        """Ask until a proposal is new, and compute its costs in the background. None while the model chooses, when the
        space seems exhausted, or when a requested trial is known already."""
        while self.refused < _MOST_TRIES:
            # A sampler may propose one corner of a small space again and again; random points find the rest.
            lost = self.refused >= _TRIES_BEFORE_RANDOM
            self.study.sampler = self.random_sampler if lost else self.own_sampler
            free = not (lost or self._is_spent or self._of_study(TrialState.WAITING))
            if self.model and free and not self._enqueue_choice(self.model):
                return None
            trial = self.study.ask()
            if (self._is_spent or self.added) and "added" not in trial.user_attrs:
                self._put_back(trial)  # it waits for a larger budget, or until requested trials have begun
                continue
            role = trial.user_attrs.get("role")
            if self.model and role and not self.live and (point := self._first_round.get(role)):
                self.study.sampler = optuna.samplers.PartialFixedSampler(point, self.own_sampler)
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

    @cached_property
    def _first_round(self) -> dict[str, dict[str, Any]]:
        """The first points by role, without open fields, for trials that nothing runs beside. Trials that begin
        together are drawn at random: of equal costs they would end together, and teach each other nothing."""
        return self.model.completed(first_points(self.spec)) if self.model else {}

    def _enqueue_choice(self, model: KnownCosts) -> bool:
        """Whether the model has chosen, which takes up to a second in another thread; its choice is enqueued."""
        self.choice = self.choice or self._ask(model.choose)
        if not self.choice.done():
            return False
        chosen, self.choice = self.choice.result(), None
        self._note_leanings(model)
        if isinstance(chosen, ResumeCandidate):
            self._resume(chosen)
            return False
        if chosen is None:  # the random sampler may find a point
            return True
        if chosen.gain is not None and (why := plateau(self.spec, self.log.state, chosen.gain)):
            self._exhaust(why)
            return False
        self.study.enqueue_trial(chosen.point, user_attrs={"gain": chosen.gain})
        return True

    def _note_leanings(self, model: KnownCosts) -> None:
        """Log which earlier searches the model leans on, once a few trials were validated and whenever twice as many
        were."""
        seen = sum(bool(one.validations) for one in self.log.state.trials.values())
        if seen < self.next_leanings or not model.leanings:
            return
        self.next_leanings = 2 * seen
        text = f"of earlier searches it {model.leanings}, after {counted(seen, 'trial')} of its own."
        self.log.record("notice", text=text)

    def _exhaust(self, why: str) -> None:
        """Propose no new trial from now on, and log why."""
        self.log.record("notice", text=why, exhausted=True)
        self.no_new_trials = True

    def _put_back(self, trial: optuna.Trial) -> None:
        """Enqueue a trial again, behind the others."""
        [waited] = [one for one in self._of_study(TrialState.RUNNING) if one.number == trial.number]
        self.study.enqueue_trial(waited.system_attrs["fixed_params"], user_attrs=trial.user_attrs)
        self.study.tell(trial, state=TrialState.FAIL)

    def _accept(self, proposal: Proposal) -> bool:
        """Log a proposal with its costs. One that breaks a limit, or cannot be trained at all, is infeasible and takes
        no worker."""
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
        """Tell Optuna how a trial ended, as the log has it."""
        self.live.discard(trial_id)
        record = self.log.state.record(self.numbers[trial_id])
        if record.paused_at_rung:
            return self._make_room(record)
        if error and record.state == "paused" and record.cause == CROWDED:
            self.unfinished.append(record.number)
        elif error and record.state in ("waiting", "paused") and record.number not in self.retried:
            # Its worker died before it began, mostly of the trial before. Ray does not start it again.
            self.retried.add(record.number)
            self.unfinished.append(record.number)
        elif error and record.state not in ENDED:
            self.log.record(
                "end", trial=record.number, state="failed", reason="its worker died too often", cause="worker"
            )
        if record.state in ENDED:  # the study's trial of a paused one stays open until it is resumed
            self._tell(record)

    def _make_room(self, newest: TrialRecord) -> None:
        """Prune the paused trial with the smallest expected gain per token where the disk is nearly full."""
        if self.model is not None and is_short_of_room(self.log, newest.number):
            ranked = self.model.rank_paused(*self._known(self.model))
            least = ranked[-1].trial if ranked else newest.number
            reason = "it was paused, had the smallest expected gain per token, and the disk has little room"
            self._prune_paused(least, reason)

    def _tell(self, record: TrialRecord) -> None:
        if record.repeats is not None:
            return
        tell(self.study, self.open.pop(record.number), record, self.spec)
