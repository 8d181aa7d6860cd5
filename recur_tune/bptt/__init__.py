"""One training step: chain of windows (plan, RNG states) -> CUDA graph -> optimizer step."""
