"""TrialConfig -> set-up -> training loop -> run folder with model, reports and checkpoint; without Ray and MLflow."""
