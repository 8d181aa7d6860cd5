"""Where a search runs: a Ray cluster, on this machine, elsewhere, or inside SLURM allocations."""
