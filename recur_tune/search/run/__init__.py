"""Running a search: from its directory to a log that is complete.

preparation (base, tokens, prices) -> sampler (what to try) -> lanes (where) -> trainable (train it) ->
scheduler (go on or stop).
This stands above tracking, monitoring and the cluster; what it runs, and what it leads to, is in `searching`.
"""
