"""TrialConfig -> set-up -> training loop -> run folder with model, reports and checkpoint; without Ray and MLflow."""

# In a run folder.
TRIAL, REPORTS, RESULT, RESUME = "trial.yaml", "reports.jsonl", "result.json", "resume"
UNTRAINED = "untrained.json"
