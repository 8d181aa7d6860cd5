"""A search in numbers for Prometheus, boards that draw them, and the servers behind both."""
