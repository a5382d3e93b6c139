"""A headless Chromium for tests of pages: `browser` is the fixture. Where Chromium, its driver or selenium is missing
it skips with the reason; where CI=true it fails instead."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NoReturn

import pytest

_FLAGS = (
    *("headless", "no-sandbox", "disable-gpu", "disable-dev-shm-usage", "window-size=1280,900", "no-first-run"),
    # It would ask its maker for this and that, and a page that needs no network has to be seen not to need it.
    *("disable-quic", "disable-background-networking", "disable-component-update", "disable-sync"),
)


@pytest.fixture
def browser(tmp_path: Path) -> Iterator[Any]:
    """A browser of its own for one test; the page's console is kept, `get_log("browser")` gives it."""
    chromium = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    driver = shutil.which("chromedriver")
    if not (chromium and driver):
        _missing("no Chromium with its driver (Debian's chromium and chromium-driver)")
    try:
        from selenium import webdriver
    except ImportError:
        _missing("selenium is not installed")
    options = webdriver.ChromeOptions()
    options.binary_location = chromium
    for flag in (*_FLAGS, f"user-data-dir={tmp_path / 'browser'}"):
        options.add_argument(f"--{flag}")
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    service = webdriver.ChromeService(executable_path=driver, log_output=os.devnull)
    opened = webdriver.Chrome(options=options, service=service)
    try:
        yield opened
    finally:
        opened.quit()


def _missing(reason: str) -> NoReturn:
    if os.environ.get("CI") == "true":
        pytest.fail(reason)
    pytest.skip(reason)
