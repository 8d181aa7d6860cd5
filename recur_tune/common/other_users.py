"""Other users of this machine: for them localhost is as near as for us."""

from __future__ import annotations

import os
import pwd
from pathlib import Path

import psutil

_FIRST_PERSON = 1000  # below are the numbers of services
_NOBODY = 65534


def other_users() -> list[str]:
    """Who else is on this machine now, by name: whoever is logged in, or has a process here. A system that shows
    nobody but oneself does so because of others."""
    found = {user.name for user in psutil.users()}
    if Path("/proc/self").exists() and not Path("/proc/1").exists():  # mounted with hidepid
        found.add("others")
    for process in psutil.process_iter():
        try:
            number = process.uids().real
        except psutil.Error:  # gone
            continue
        if number >= _FIRST_PERSON and number != _NOBODY:
            found.add(_name(number))
    return sorted(found - {_name(os.getuid())})


def _name(number: int) -> str:
    try:
        return pwd.getpwuid(number).pw_name
    except KeyError:
        return str(number)
