"""Searches from Python. Here a search gets its outputs, for Python and for the command line: MLflow, Prometheus and the
files of its front."""
