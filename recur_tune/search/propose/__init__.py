"""What a search expects of a trial that has not been trained: a Gaussian process of its quality beside its exact costs.

features -> process -> improvement -> expected -> known_costs
"""
