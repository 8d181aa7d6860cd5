"""Searches inside SLURM allocations.

On the login node: profile -> job script -> queue. In the allocation: a Ray cluster starts node by node, and the search
runs on it. Both share the search directory's folder `slurm`.
"""
