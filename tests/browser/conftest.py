"""One browser for every test in this folder, and a page of its own for each."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.browser import MISSING, PATIENCE, find_chromium, running_chromium

_SCREENSHOTS = Path(__file__).parents[2] / "build" / "screenshots"

expect.set_options(timeout=PATIENCE)  # its own five seconds are few where tests share two cores


# Not for the session: while it is open this thread has a running event loop, and nobody else could start one.
@pytest.fixture(scope="package")
def browser() -> Iterator[Browser]:
    """Chromium, for all tests in this folder."""
    executable = find_chromium()
    if executable is None:
        pytest.skip(MISSING)
    with running_chromium(executable) as browser:
        yield browser


@pytest.fixture
def page(browser: Browser) -> Iterator[Page]:
    """An empty page of a desktop's size, without anyone's cookies."""
    context = browser.new_context(viewport={"width": 1280, "height": 900})
    context.set_default_timeout(PATIENCE)
    yield context.new_page()
    context.close()


@pytest.fixture(scope="session")
def keep() -> Callable[[Page, str], Path]:
    """Keep a picture of a whole page under a name, for people to look at."""
    folder = Path(os.environ.get("RECUR_TUNE_SCREENSHOTS") or _SCREENSHOTS)

    def keep_as(page: Page, name: str) -> Path:
        path = folder / f"{name}.png"
        page.screenshot(path=path, full_page=True)  # makes the folder
        return path

    return keep_as
