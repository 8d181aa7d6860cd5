"""The next hour in words: what a search is expected to gain if it goes on."""

from __future__ import annotations

from recur_tune.common.units import counted, format_duration
from recur_tune.search.record.progress import SHARE_OF_OUTLOOKS, NextHour


def in_words(hour: NextHour, volume: float) -> str:
    """What the next hour is expected to add to a hypervolume, as a sentence."""
    more = min(hour.hypervolume, 1 - volume)  # the whole box has 1
    which = "rest of the search" if hour.is_rest else f"next {_hour(hour.seconds)}"
    trials = counted(float(f"{hour.trials:.2g}"), "trial")
    about = f"the {which}, about {trials}, is expected to add"
    if hour.low is None or hour.high is None:
        return f"{about} {more:.2g} at most to the hypervolume of {volume:.2g}"
    between = f"{100 * SHARE_OF_OUTLOOKS:g} %: {_gain(hour.low)} to {_gain(hour.high)}"
    return f"{about} {_gain(more)} to the hypervolume of {volume:.2g} ({between})"


def _hour(seconds: float) -> str:
    return "hour" if seconds == 3600 else format_duration(seconds)


def _gain(volume: float) -> str:
    """A gain of hypervolume with two digits, to the ten thousandth of the whole box."""
    return f"{round(volume, 4):.2g}"
