"""What a test costs: seconds of a processor, however many others run beside it."""

from __future__ import annotations

import resource

PROCESSOR = "processor"  # the property under which a test's results have them


def processor_seconds() -> float:
    """Of this process, and of all that it has started and waited for, so far."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(one.ru_utime + one.ru_stime for one in used)
