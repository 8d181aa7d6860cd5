"""Pages as people see them: in a real Chromium that nobody has to look at."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager

from playwright.sync_api import Browser, BrowserContext, sync_playwright

from tests import waiting

# First the one that has no window to draw: it takes five sixths of the others' time.
_NAMES = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome")
PATIENCE = 1000 * waiting.PATIENCE  # in milliseconds
# Chromium's sandbox refuses root; lines by the thousand are drawn by WebGL, which has no GPU here.
FLAGS = ["--enable-unsafe-swiftshader", *(["--no-sandbox"] if os.geteuid() == 0 else [])]
MISSING = "a browser test needs Chromium, not found here (`make packages` installs it)"


def find_chromium() -> str | None:
    """Where the machine's own Chromium is; Playwright would download one."""
    return next((found for name in _NAMES if (found := shutil.which(name))), None)


@contextmanager
def running_chromium(executable: str) -> Iterator[Browser]:
    """A browser without a window."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=executable, args=FLAGS, timeout=PATIENCE)
        yield browser
        browser.close()


def desktop(browser: Browser) -> BrowserContext:
    """Windows of a desktop's size, without anyone's cookies."""
    context = browser.new_context(viewport={"width": 1280, "height": 900})
    context.set_default_timeout(PATIENCE)
    return context
