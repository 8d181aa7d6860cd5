"""Connect to a cluster -> its capacity -> what a trial gets; a watchdog for a cluster that is lost."""
