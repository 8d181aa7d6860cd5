"""A search as it lies on disk: what was asked for, what happened, and the front of quality against cost.

spec -> space -> directory (its log) -> state -> front. Everything that happens is a line in the search directory's log;
all that is shown, tracked or resumed is read from it. What runs a search is in `running`.
"""
