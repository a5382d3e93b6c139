"""A headless Chromium for tests of pages: `browser` is the fixture, `assert_readable_by_all` asks axe-core and paper.
Where Chromium, its driver or a package is missing it skips with the reason; where CI=true it fails instead."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.fixtures import cannot

_FLAGS = (
    *("headless", "no-sandbox", "disable-gpu", "disable-dev-shm-usage", "window-size=1280,900", "no-first-run"),
    # It would ask its maker for this and that, and a page that needs no network has to be seen not to need it.
    *("disable-quic", "disable-background-networking", "disable-component-update", "disable-sync"),
)

_COLOURS = ("color-contrast", "link-in-text-block")  # axe-core's rules of colours
WIDE, PHONE, PAPER = (1280, 900), (390, 844), (680, 960)  # pixels; paper is A4 less its margins


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """One for the tests of a module; the page's console is kept, `get_log("browser")` gives it."""
    chromium = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    driver = shutil.which("chromedriver")
    if not (chromium and driver):
        cannot("no Chromium with its driver (Debian's chromium and chromium-driver)")
    try:
        from selenium import webdriver
    except ImportError:
        cannot("selenium is not installed")
    options = webdriver.ChromeOptions()
    options.binary_location = chromium
    for flag in (*_FLAGS, f"user-data-dir={tmp_path_factory.mktemp('browser')}"):
        options.add_argument(f"--{flag}")
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    service = webdriver.ChromeService(executable_path=driver, log_output=os.devnull)
    opened = webdriver.Chrome(options=options, service=service)
    opened.set_script_timeout(100)
    try:
        yield opened
    finally:
        opened.quit()


def show(browser: Any, path: Path, size: tuple[int, int], theme: str, media: str = "screen") -> None:
    """Open a file as it is seen at `size`, by a person who prefers the `theme`, on the screen or in print."""
    width, height = size
    metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": size == PHONE}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
    features = [{"name": "prefers-color-scheme", "value": theme}]
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": media, "features": features})
    browser.get(path.as_uri())


def assert_readable_by_all(browser: Any, path: Path) -> None:
    """No finding on a wide screen and on a phone, in light and dark; paper is white, and nothing is cut off on it. A
    theme is colours alone, so each size has all rules in one theme and those of colours in the other."""
    for size, theme, other in ((WIDE, "light", "dark"), (PHONE, "dark", "light")):
        show(browser, path, size, theme)
        _assert_none([*axe_findings(browser), *cut_off(browser)], f"{size}, {theme}")
        show(browser, path, size, other)
        _assert_none([*axe_findings(browser, _COLOURS), *cut_off(browser)], f"{size}, {other}")
    show(browser, path, PAPER, "dark", "print")
    _assert_none(cut_off(browser), "paper")
    assert browser.execute_script("return getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"


def _assert_none(findings: list[str], where: str) -> None:
    assert not findings, "\n".join([where, *findings])


def axe_findings(browser: Any, only: Sequence[str] = ()) -> list[str]:
    """What axe-core, with all of its rules or `only` some, finds wrong in the page: rule, element, and why."""
    try:
        import axe_core_python
    except ImportError:
        cannot("axe-core-python is not installed")
    browser.execute_script((Path(axe_core_python.__file__).parent / "axe.min.js").read_text(encoding="utf-8"))
    options = {"resultTypes": ["violations"], **({"runOnly": list(only)} if only else {})}
    run = "const [options, done] = arguments; axe.run(document, options).then(done, (e) => done(String(e)))"
    results = browser.execute_async_script(run, options)
    ran = isinstance(results, dict) and len(results["passes"]) > (0 if only else 15)
    assert ran, f"axe did not run: {json.dumps(results)[:500]}"
    return [
        f"{rule['id']}: {node['html'][:200]}: {node['failureSummary']}"
        for rule in results["violations"]
        for node in rule["nodes"]
    ]


def cut_off(browser: Any) -> list[str]:
    """What stands out of the page to the right, where people have to scroll and paper ends. On the screen, what scrolls
    by itself may be wider."""
    script = """
      const [page, paper] = [document.documentElement, matchMedia("print").matches];
      const out = [...document.querySelectorAll("body *")].filter((one) => one.getClientRects().length
        && one.getBoundingClientRect().right > page.clientWidth + 1 && (paper || !one.closest(".wide, pre")));
      return [...out.map((one) => one.outerHTML.slice(0, 200)),
        ...(page.scrollWidth > page.clientWidth ? [`${page.scrollWidth} pixels of ${page.clientWidth}`] : [])];
    """
    return [str(element) for element in browser.execute_script(script)]
