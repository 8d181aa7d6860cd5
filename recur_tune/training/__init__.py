"""TrialConfig -> set-up -> training loop -> run folder with model, reports and checkpoint; without Ray and MLflow."""

from pathlib import Path

# In a run folder.
TRIAL, REPORTS, RESULT, RESUME = "trial.yaml", "reports.jsonl", "result.json", "resume"
UNTRAINED = "untrained.json"


def unfinished(run: Path) -> str | None:
    """A remark on a run that was stopped and is yet to be resumed; None for a finished run, and for other folders."""
    if not (run / RESUME).is_dir() or (run / RESULT).is_file():
        return None
    return f"{run} is unfinished, and this is its best model so far; go on: recur-tune train --out {run} --resume."
