"""Fields from flags, YAML or a search -> TrialConfig, which every other room reads."""
