"""What runs: a search from its directory to a complete log, on Ray Tune.

driver: preparation, base_task -> searcher (what to train) -> execution (where) -> trainable (trains) -> scheduler
(logs). client and jobs run the driver on a cluster elsewhere. outputs: what it writes beside the log.
"""
