"""What lies on disk: a search as it was asked for, what happened, and what follows from it. Imports no Ray.

spec, space -> directory (event_log, under a lease) -> state (log_follower) -> front -> decision, confirmation, progress
Everything that is shown, tracked or resumed is read from the log. `damage` says what of it is damaged, `recovery` finds
that in other books.
"""
