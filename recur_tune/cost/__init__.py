"""TrialConfig and a base's shape -> FLOPs, training memory and inference memory, before anything runs."""
