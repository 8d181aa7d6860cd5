"""A search for the Pareto front of quality against costs.

record (what lies on disk) -> propose (what to train next) -> run (training on Ray Tune, which writes the record)
"""
