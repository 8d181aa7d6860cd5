"""One browser for every test in this folder, and a page of its own for each."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.browser import MISSING, PATIENCE, desktop, find_chromium, running_chromium

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
    context = desktop(browser)
    yield context.new_page()
    context.close()


@pytest.fixture(scope="session")
def keep() -> Callable[[Page, str], None]:
    """Keep a picture of a whole page under a name, for people to look at: in $RECUR_TUNE_SCREENSHOTS, if it is set."""

    def keep_as(page: Page, name: str) -> None:
        if folder := os.environ.get("RECUR_TUNE_SCREENSHOTS"):
            page.screenshot(path=Path(folder) / f"{name}.png", full_page=True)  # makes the folder

    return keep_as
