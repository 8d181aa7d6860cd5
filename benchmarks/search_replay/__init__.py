"""Searches replayed: samplers and schedulers are real, training is looked up."""
