"""Text to batches: corpora -> tokenizers, tokens -> batches."""
