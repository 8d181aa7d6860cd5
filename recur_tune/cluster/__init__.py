"""The Ray cluster that a search runs on, and where a search departs from Ray.

connection -> capacity (what a trial gets there) -> placement; liveness: a watchdog for a cluster that is lost
"""
