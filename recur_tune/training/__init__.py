"""TrialConfig -> set-up -> training loop -> run folder with model, reports and checkpoint; without Ray and MLflow."""

TRIAL, REPORTS, RESULT, RESUME = "trial.yaml", "reports.jsonl", "result.json", "resume"  # in a run folder
