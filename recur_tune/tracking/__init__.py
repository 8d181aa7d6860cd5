"""A search's event log -> MLflow, TensorBoard and Prometheus; no search waits for them."""
