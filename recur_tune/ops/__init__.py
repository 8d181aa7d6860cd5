"""Operations of a training step: reference operations, the fused backward pass, and triton/ with their kernels."""
