"""A search through Ray's client port: its driver runs on the cluster, and this process watches."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from recur_tune.cluster.connection import check_reachable
from recur_tune.cluster.sigterm import own_sigterm
from recur_tune.common.errors import Paused, UserError
from recur_tune.search.record.directory import SearchDirectory
from recur_tune.search.record.state import SearchState
from recur_tune.training.interrupt import stop_requests

if TYPE_CHECKING:
    from recur_tune.search.record.confirmation import ConfirmationPlan
    from recur_tune.search.run.listener import ProgressListener
    from recur_tune.search.run.outputs import Outputs


def run_search_there(
    directory: SearchDirectory, outputs: Outputs, address: str, confirm: ConfirmationPlan | None,
    listener: ProgressListener,
) -> SearchState:  # fmt: skip
    """Run a search as a task of the cluster at ray://HOST:PORT; both sides have to see the search directory."""
    check_reachable(address)
    listener.stage(f"connecting to {address} …")
    import ray

    try:
        with own_sigterm():
            ray.init(address, log_to_driver=False)
    except (ConnectionError, RuntimeError, ValueError) as error:
        reason = (str(error).strip().splitlines() or [type(error).__name__])[-1]
        raise UserError(f"address: {address} took no client ({reason[:200]}).") from error
    try:
        task = ray.remote(num_cpus=0, max_retries=0)(_search_here).remote(str(directory.path), outputs, confirm)
        listener.searching(confirm is not None)
        with stop_requests(listener.pausing) as interrupted:
            while not ray.wait([task], timeout=0.5)[0]:
                if interrupted() and not directory.stop_requested:
                    directory.request_stop()
        refused = ray.get(task)
    finally:
        with own_sigterm():
            ray.shutdown()
    if refused:
        sentence, code = refused
        raise Paused(sentence) if code == Paused.exit_code else UserError(sentence)
    return directory.state()


def _search_here(path: str, outputs: Outputs, confirm: ConfirmationPlan | None) -> tuple[str, int] | None:
    """Runs in a worker of the cluster; gives None, or why the search was refused or paused and its exit code."""
    from recur_tune.search.run.driver import run_search

    directory = SearchDirectory(Path(path))
    if not directory.path.is_dir():
        sentence = f"results: the cluster does not see {path}; give --results on storage that both sides share."
        return sentence, UserError.exit_code
    try:
        run_search(directory, outputs, address="auto", confirm=confirm)
    except UserError as error:
        return str(error), error.exit_code
    return None
