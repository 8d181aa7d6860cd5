"""Events of a log -> updates by run -> calls to MLflow's client."""
