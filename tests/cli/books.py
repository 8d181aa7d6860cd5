"""A search with a trial in every state, called `books`, for commands that read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from recur_tune.search.record.directory import MODEL, SearchDirectory
from tests.cli.run import Outcome
from tests.search.record import search

SPACE = {
    "base": "tiny", "window": [16, 32, 64], "overlap": {"from": 0, "to": 0.5, "of": "window"},
    "recurrence": {"none": None, "pooled": {"l_ins": [1, 2, 3], "width": [100, 200]}},
    "learning_rate": {"from": 1e-4, "to": 1e-2, "log": True},
}  # fmt: skip


def record_trial(directory: SearchDirectory, number: int, role: str = "", **params: Any) -> None:
    costs = {
        "flops_per_token": 1e6 * params["window"], "peak_memory": 2.0**20 * (10 + number), "parameters": 175_000,
        "training_flops_per_token": 4e6,
    }  # fmt: skip
    directory.record("trial", trial=number, params=params, costs=costs, role=role)


def record_report(directory: SearchDirectory, number: int, tokens: int, perplexity: float, state: str = "") -> None:
    ending = {"state": state} if state else {}
    metrics = {"perplexity": perplexity, "bits_per_byte": perplexity / 10}
    directory.record("report", trial=number, tokens=tokens, loss=2.5, validation=metrics, **ending)


def lines_of(text: str) -> list[str]:
    return [line.rstrip() for line in text.splitlines() if line.strip()]


def refused(outcome: Outcome, *words: str) -> None:
    assert outcome.code == 2 and outcome.out == "" and len(lines_of(outcome.err)) == 1, outcome
    for word in words:
        assert word in outcome.err, outcome.err


def make_books(folder: Path) -> None:
    """Write it down in a folder of results."""
    spec = search(space=SPACE, budget={"tokens": "80k", "trials": 7}, limits={"peak_memory": "64MiB"})
    books = SearchDirectory.create(folder, "books", spec)
    books.record("search", status="started", links={"dashboard": "http://127.0.0.1:8265"})
    books.record("reference", values={"perplexity": 100.0, "flops_per_token": 1e8, "peak_memory": 2.0**26})
    memory = {"recurrence": "pooled", "l_ins": 2, "width": 200}
    rate = {"learning_rate": 0.00123456}
    record_trial(books, 0, "baseline", recurrence="none", window=32, overlap=0, **rate)
    record_trial(books, 1, "paper", **memory, window=32, overlap=8, **rate)
    record_trial(books, 2, **memory, window=64, overlap=0, **rate)
    record_trial(books, 3, **memory, window=16, overlap=4, **rate)
    record_trial(books, 4, **memory, window=16, overlap=0, **rate)
    record_trial(books, 5, **memory, window=64, overlap=32, **rate)
    record_trial(books, 6, **memory, window=64, overlap=16, **rate)
    for number in range(5):
        books.record("running", trial=number)
    record_report(books, 0, 80_000, 50.0, "complete")
    record_report(books, 1, 80_000, 40.0, "complete")
    record_report(books, 2, 80_000, 45.0, "complete")  # the paper's point beats it in everything
    record_report(books, 3, 20_000, 70.0, "pruned")
    record_report(books, 4, 20_000, 60.0)
    books.record("end", trial=5, state="infeasible", reason="peak_memory 80 MiB is over the limit of 64 MiB")
    books.record("end", trial=6, state="failed", reason="its worker [rank 0] died")
    books.record("notice", text="MLflow has not got everything")
    for number in (0, 1):
        model = books.trial(number) / MODEL
        model.mkdir(parents=True)
        (model / "config.json").write_text("{}")
        (model / "model.safetensors").write_bytes(b"weights")
