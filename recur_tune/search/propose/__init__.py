"""What is proposed next: a new trial, or a paused one to resume.

observations (from the log) -> features -> gaussian_process -> acquisition -> expected_gains -> known_costs (candidates)
first_round: the fields that first trials leave open; look_ahead, outlook: what going on is expected to bring.
earlier_searches: the mean function of the process, from what earlier searches found.
optuna_study: Optuna's samplers instead; rungs: pruning beside those.
"""
