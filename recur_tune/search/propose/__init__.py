"""What is proposed next: a new trial, or a paused one to resume.

observations (from the log) -> features -> gaussian_process -> acquisition -> expected_gains -> known_costs (candidates)
optuna_study: Optuna's samplers instead; rungs: pruning beside those.
"""
