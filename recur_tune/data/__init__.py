"""Text to tokens to windows: sources -> tokens -> windows -> batches."""
