"""Fields from flags, YAML or a search -> TrialConfig, which the packages above read."""
