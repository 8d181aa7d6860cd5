"""Sites that lend a search their machines: profiles, and SLURM allocations that become a Ray cluster."""
