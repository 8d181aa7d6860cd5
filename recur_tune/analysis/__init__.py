"""Trained runs -> their topics, and the memory and time that a state costs."""
