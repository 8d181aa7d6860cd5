"""Searches inside SLURM allocations.

On the login node: a site's profile becomes a job script, and the queue is asked. In the allocation: a Ray cluster
comes up node by node and a search runs on it as on any other. Both meet in the search directory's folder `slurm`.
"""
