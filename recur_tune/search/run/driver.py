"""The driver of a search: prepares what trials need, has Ray Tune run them, and writes the front."""

from __future__ import annotations

import math
import shutil
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from recur_tune.cluster.capacity import (
    WAITING_CPU,
    Capacity,
    TrialResources,
    check_this_machine,
    known_card,
    sharing_notice,
    trial_resources,
)
from recur_tune.cluster.connection import JOBS, Cluster, check_reachable, connected, runs_elsewhere
from recur_tune.cluster.liveness import ClusterLost, ClusterWatchdog, outside_of_ray
from recur_tune.common.errors import Paused, StorageFault, UserError
from recur_tune.common.files import storage_fault
from recur_tune.common.loading import load
from recur_tune.config.trial import TrialConfig
from recur_tune.search.record.confirmation import ConfirmationPlan, splits_needed, untried_rivals
from recur_tune.search.record.damage import refuse_damaged_log
from recur_tune.search.record.directory import STUDY, SearchDirectory, SearchLog
from recur_tune.search.record.objectives import COSTS
from recur_tune.search.record.recovery import folders
from recur_tune.search.record.requests import RIVAL, trials_wait
from recur_tune.search.record.spec import SearchSpec
from recur_tune.search.record.state import ENDED, SearchState
from recur_tune.search.run.base_task import make_base
from recur_tune.search.run.driver_context import DriverContext, StageLog
from recur_tune.search.run.jobs import job_client
from recur_tune.search.run.listener import ProgressListener
from recur_tune.search.run.outputs import Outputs, Tracker
from recur_tune.search.run.preparation import Prices, check_limits, check_shapes, missing_bases, tokenise, worst_costs
from recur_tune.search.run.teacher_task import make_predictions, teachers
from recur_tune.search.run.trial_files import remove_leftovers
from recur_tune.training.interrupt import stop_requests

if TYPE_CHECKING:
    from ray.tune.experiment import Trial

    from recur_tune.search.run.agreement import Agreement
    from recur_tune.search.run.callback import DriverCallback
    from recur_tune.search.run.searcher import OptunaSearcher


# MLflow takes a core for seconds to import and to make its database; the first trials start before that.
_SECONDS_FOR_THE_FIRST_TRIALS = 15.0


def check_runnable(spec: SearchSpec, address: str | None) -> None:
    """Refuse a search that cannot run, before its directory is made or changed."""
    if address is None:
        check_this_machine(spec.resources)
    elif address.startswith(JOBS):
        job_client(address)
    else:
        check_reachable(address)
    check_shapes(spec)
    check_limits(spec)
    if address is not None and not runs_elsewhere(address):  # there the driver on the cluster checks it
        with connected(address) as cluster:
            trial_resources(spec.resources, cluster)


def run_search(
    directory: SearchDirectory, outputs: Outputs, address: str | None = None, listener: ProgressListener | None = None,
    confirm: ConfirmationPlan | None = None, change: SearchSpec | None = None,
) -> SearchState:  # fmt: skip
    """Run a new search or resume one: both begin with the state of the log.

    At the first Ctrl-C or SIGTERM trials save checkpoints and the search pauses; Ctrl-C after that ends it at once. In
    both cases, and after a crash, a resume loses no finished trial.

    Args:
        confirm: Repeat the front with other seeds, and propose no new trial.
        change: The spec to resume with; it is saved once this process holds the lease.
    """
    listener = listener or ProgressListener()
    with _pausing_for_storage(), directory.hold_lease():
        log = directory.open_log()
        agreement = _agreement(log)
        if change is not None:
            directory.write_spec(change)
        spec = directory.spec
        with _preparing(log):
            stages = StageLog(log)
            stages.tell("loading torch …")
            check_shapes(spec)
            if agreement:
                agreement.bring_in_line()
            bases = missing_bases(directory, spec)
            # Beside the start of Ray, which mostly waits; a base that is still to be made may get another shape.
            worst = None if bases else _simulate_worst_costs(spec, log)
            stages.tell("starting Ray …" if address is None else f"connecting to {address} …")

            def end(loss: ClusterLost) -> None:
                _log_cluster_loss(log, loss, listener)

            with stop_requests(listener.pausing) as interrupted, connected(address, _about(directory), end) as cluster:
                allotment = _allot(spec, cluster, log)
                shutil.rmtree(directory.path / "ray", ignore_errors=True)  # Ray Tune's files of an earlier run
                remove_leftovers(spec, log)
                with (
                    # To pretrain a base takes minutes, so that the tracker may start at once.
                    _tracked(spec, log, outputs, listener, at_once=bool(bases)) as tracker,
                    outputs.exporting(directory, spec) as exporter,
                    ClusterWatchdog(end) as watchdog,
                    outside_of_ray(watchdog),
                ):
                    context = DriverContext(log, interrupted, exporter, watchdog)
                    splits = splits_needed(log.state, confirm)
                    if _made_ready(spec, bases, splits, allotment, context, stages):
                        _begin(log, cluster, confirm, worst or _simulate_worst_costs(spec, log))
                        listener.searching(confirm is not None)
                        if not bases:
                            tracker.start(after=_SECONDS_FOR_THE_FIRST_TRIALS)
                        _tune_all(spec, log, allotment, context, confirm)
        if log.state.fault:
            raise Paused(log.state.fault)
    return log.state


def _made_ready(
    spec: SearchSpec, bases: list[TrialConfig], splits: Iterable[str], allotment: TrialResources,
    context: DriverContext, stages: StageLog,
) -> bool:  # fmt: skip
    """Bases, tokens and teachers' predictions, so that no trial waits for them; False where a stop was requested."""
    if not all(make_base(config, allotment, context, stages) for config in bases):
        return False
    tokenise(context.log.directory, spec, splits, stages.tokenising(context.interrupted))
    return all(make_predictions(config, allotment, context, stages) for config in teachers(spec))


def _agreement(log: SearchLog) -> Agreement | None:
    """The check of what lies on disk before anything is changed; a new search has nothing to compare."""
    directory = log.directory
    if not log.state.trials and not (directory.path / STUDY).exists() and not folders(directory):
        refuse_damaged_log(directory, log.state)
        return None
    load("recur_tune.search.run.agreement")  # Optuna
    from recur_tune.search.run.agreement import Agreement

    agreement = Agreement(log, Prices(directory.spec.resources))
    agreement.check()
    return agreement


def _allot(spec: SearchSpec, cluster: Cluster, log: SearchLog) -> TrialResources:
    """What a trial gets of the cluster; a notice says once how trials get their GPUs."""
    allotment = trial_resources(spec.resources, cluster, known_card(spec.resources, cluster))
    why = sharing_notice(spec.resources, cluster, allotment)
    if why and why not in log.state.notices:
        log.record("notice", text=why)
    return allotment


def _begin(
    log: SearchLog, cluster: Cluster, confirm: ConfirmationPlan | None, worst: Future[dict[str, float]] | None
) -> None:
    """Log that trials begin, and fix the reference costs of the hypervolume, once and before the first trial, so that
    all hypervolumes of a search are comparable."""
    links = {"dashboard": cluster.dashboard} if cluster.dashboard else {}
    log.record("search", status="started", links=links, confirming=confirm is not None)
    if worst:
        log.record("reference", values=worst.result())


def _log_cluster_loss(log: SearchLog, loss: ClusterLost, listener: ProgressListener) -> None:
    """Log the pause from another thread: the one that runs the search is stuck in Ray, and the process is about to
    end."""
    with suppress(StorageFault):
        log.record("search", status="paused")
    listener.stuck(loss)


@contextmanager
def _pausing_for_storage() -> Iterator[None]:
    """Pause the search where storage fails, also where Ray, Optuna or MLflow writes."""
    try:
        yield
    except Paused:
        raise
    except Exception as error:
        fault = storage_fault(error)
        if fault is None or isinstance(fault.__cause__, PermissionError):  # waiting does not help
            raise
        raise Paused(str(fault)) from error


@contextmanager
def _preparing(log: SearchLog) -> Iterator[None]:
    """Log that the search is being prepared; where it is refused before a trial begins, restore its former status."""
    before = log.state.status
    log.record("search", status="preparing")
    try:
        yield
    except UserError:
        if log.state.status == "preparing":
            with suppress(StorageFault):  # a full disk takes no further line
                log.record("search", status="paused" if before in ("new", "started", "preparing") else before)
        raise


@contextmanager
def _tracked(
    spec: SearchSpec, log: SearchLog, outputs: Outputs, listener: ProgressListener, at_once: bool
) -> Iterator[Tracker]:
    """A tracker; at the end the search's status is logged, the front written, and the rest delivered.

    The tracker starts now where `at_once`, otherwise when it is told to.
    """
    tracker, refused = outputs.tracker(log.directory), False
    if at_once:
        tracker.start()
    try:
        yield tracker
    except UserError:
        refused = log.state.status == "preparing"
        raise
    finally:
        files: list[Path] = []
        try:
            if not refused:
                log.record("search", status="finished" if _is_done(spec, log) else "paused")
                listener.ending()
                files = outputs.write_front(log.directory, spec, log.state)
        finally:
            if at_once or not refused:
                listener.stage("delivering the rest to MLflow …")
                if undelivered := tracker.finish(files):
                    log.record("notice", text=undelivered)


def _about(directory: SearchDirectory) -> dict[str, str]:
    """The search's name and folder, for Ray's list of jobs."""
    return {"job_name": directory.name, "folder": str(directory.path.absolute())}


def _tune_all(
    spec: SearchSpec, log: SearchLog, allotment: TrialResources, context: DriverContext,
    confirm: ConfirmationPlan | None,
) -> None:  # fmt: skip
    """The trials of a search, or the repeats of its front, before which come the plain rivals that it lacks."""
    if confirm and (rivals := untried_rivals(log.state, spec)):
        _tune(spec, log, allotment, context, confirm, rivals)
    _tune(spec, log, allotment, context, confirm)
    while trials_wait(log.directory) and not (confirm or context.interrupted() or log.directory.stop_requested):
        _tune(spec, log, allotment, context)  # one was added when all had ended


def _tune(
    spec: SearchSpec, log: SearchLog, allotment: TrialResources, context: DriverContext,
    confirm: ConfirmationPlan | None = None, rivals: Mapping[str, dict[str, Any]] = {},
) -> None:  # fmt: skip
    load("recur_tune.search.run.searcher")  # Ray Tune and Optuna
    from recur_tune.search.run.callback import DriverCallback
    from recur_tune.search.run.execution import train
    from recur_tune.search.run.gpu_sharing import SharedCards
    from recur_tune.search.run.outlooks import Outlooks
    from recur_tune.search.run.searcher import OptunaSearcher

    deadline = _deadline(spec, log) if confirm is None else math.inf

    def is_over() -> bool:
        return time.time() > deadline or bool(log.state.fault)

    room = Capacity(spec.resources, allotment.card)
    shared = SharedCards(allotment.card, lambda: room.gpus) if allotment.card else None
    prices = Prices(spec.resources, allotment.memory, spec.limits.get("peak_memory"))
    searcher = OptunaSearcher(spec, log, prices, is_over, room, confirm is None, shared, prices.workers)
    for point in rivals.values():  # first, since they are repeated too
        searcher.add(point, RIVAL)
    if confirm is not None and not rivals:
        for trial, seed in confirm.missing(log.state, spec):
            searcher.repeat(trial, seed, confirm.split)
    callback = DriverCallback(
        spec, log, lambda: context.interrupted() or is_over(), context.exporter, context.watchdog,
        Outlooks(searcher, log).catch_up,
    )  # fmt: skip
    fit(spec, log, allotment, searcher, train, callback)


def fit(
    spec: SearchSpec,
    log: SearchLog,
    allotment: TrialResources,
    searcher: OptunaSearcher,
    train: Callable[[dict[str, Any]], None],
    callback: DriverCallback,
) -> None:
    """Run the search with Ray Tune until its end."""
    from ray import tune

    from recur_tune.cluster.placement_groups import NamedPlacementGroups
    from recur_tune.cluster.process_names import named
    from recur_tune.cluster.ray_tune_adaptations import MAX_CONCURRENT_TRIALS
    from recur_tune.search.run.scheduler import ParetoPruning

    name = log.directory.name

    def place(job: dict[str, Any]) -> NamedPlacementGroups:
        if job["workers"] == 1:
            return NamedPlacementGroups(name, {"CPU": job["cpus"], "GPU": job["gpus"]})
        # The trial's own actor only waits for its workers.
        worker = {"CPU": job["cpus"] - WAITING_CPU, "GPU": job["gpus"]}
        return NamedPlacementGroups(name, {"CPU": WAITING_CPU}, *[worker] * job["workers"])

    tune.Tuner(
        tune.with_resources(named(train, f"{name}-trial"), place),
        param_space={"cpus": allotment.cpus, "gpus": allotment.gpus},
        tune_config=tune.TuneConfig(
            search_alg=searcher,
            scheduler=ParetoPruning(spec, log, searcher.should_continue),
            num_samples=-1,
            max_concurrent_trials=MAX_CONCURRENT_TRIALS,
            reuse_actors=True,
            trial_name_creator=_Name(f"{name}-"),
            trial_dirname_creator=_Name(),
        ),
        run_config=tune.RunConfig(
            name="ray",  # the folder of Ray Tune's own files
            storage_path=str(log.directory.path),
            verbose=0,
            callbacks=[callback],
            failure_config=tune.FailureConfig(max_failures=3),
        ),
    ).fit()


@dataclass(frozen=True)
class _Name:
    """Makes Ray's name of a trial from its number; a `prefix` names the search."""

    prefix: str = ""

    def __call__(self, trial: Trial) -> str:
        return f"{self.prefix}T{trial.config['number']}"


def _deadline(spec: SearchSpec, log: SearchLog) -> float:
    if spec.budget.wall_clock is None:
        return math.inf
    return time.time() + spec.budget.wall_clock - log.state.active_seconds


def _simulate_worst_costs(spec: SearchSpec, log: SearchLog) -> Future[dict[str, float]] | None:
    """Begin to compute the reference costs in another thread; None where the log has them."""
    known = [*spec.reference, *(name for name in spec.objectives if name in COSTS)]
    if all(name in log.state.reference for name in known):
        return None
    thread = ThreadPoolExecutor(1, thread_name_prefix="pricing")
    try:
        return thread.submit(worst_costs, spec, Prices(spec.resources), log.directory.with_own_base)
    finally:
        thread.shutdown(wait=False)


def _is_done(spec: SearchSpec, log: SearchLog) -> bool:
    """Whether a resume would have nothing to do."""
    state = log.state
    if any(trial.state not in ENDED for trial in (*state.trials.values(), *state.repeats.values())):
        return False
    return spec.budget.trials is None or state.trained >= spec.budget.trials or state.exhausted
