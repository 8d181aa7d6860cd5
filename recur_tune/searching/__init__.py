"""A search: from a space in YAML to the front of quality against cost.

spec -> space -> sampler (what to try) -> trainable (train it) -> scheduler (go on or stop) -> state -> front.
Everything that happens is a line in the search directory's log; all that is shown, tracked or resumed is read from it.
"""
