"""Recurrences: one folder a mechanism. A package that brings one imports its description's parts from here."""

from recur_tune.recurrences.mechanism import Mark, Mechanism, Work

__all__ = ["Mark", "Mechanism", "Work"]
