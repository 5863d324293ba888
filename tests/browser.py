"""A headless Chromium for tests, driven through chromedriver by the WebDriver protocol
(https://www.w3.org/TR/webdriver2/).
"""

from __future__ import annotations

import base64
import json
import re
import shutil
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

DRIVER, CHROMIUM = (
    shutil.which("chromedriver"),
    shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome"),
)

_FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--window-size=1500,1200",
)

# What the driver answers to a click while the page is being drawn anew.
_NOT_YET = ("element click intercepted", "element not interactable", "stale element reference")


class Browser:
    """One window."""

    def __init__(self, server: str, profile: Path) -> None:
        self._session = server
        options = {"binary": CHROMIUM, "args": [*_FLAGS, f"--user-data-dir={profile}"]}
        started = self._call(
            "POST", "/session", {"capabilities": {"alwaysMatch": {"goog:chromeOptions": options}}}
        )
        self._session = f"{server}/session/{started['sessionId']}"

    def open(self, address: str) -> None:
        self._call("POST", "/url", {"url": address})

    def evaluate(self, expression: str) -> Any:
        """The value of a JavaScript expression in the page."""
        return self._call("POST", "/execute/sync", {"script": f"return {expression};", "args": []})

    def wait_for(self, expression: str, seconds: float = 60) -> Any:
        """The value of an expression once it is true."""
        for _ in range(int(seconds * 10)):
            value = self.evaluate(expression)
            if value:
                return value
            time.sleep(0.1)
        raise AssertionError(
            f"the page never satisfied {expression}; it shows: "
            f"{self.evaluate('document.body.innerText')[:800]}"
        )

    def click(self, expression: str, seconds: float = 60) -> None:
        """Click the element that the expression gives, once a mouse could: it is there, in view,
        and nothing that still moves covers it.
        """
        refusal = None
        for _ in range(int(seconds * 10)):
            (identity,) = self.wait_for(expression).values()
            try:
                self._call("POST", f"/element/{identity}/click", {})
                return
            except urllib.error.HTTPError as answer:
                refusal = json.load(answer)["value"]
                if refusal["error"] not in _NOT_YET:
                    break
                time.sleep(0.1)
        raise AssertionError(f"no click on {expression}: {refusal}")

    def click_until(self, expression: str, condition: str, attempts: int = 4) -> Any:
        """Click until the condition holds, and give its value: a page that is still starting drops
        clicks, or takes them back.
        """
        for attempt in range(attempts):
            if attempt == 0 or self.evaluate(f"Boolean({expression})"):
                self.click(expression)
            try:
                return self.wait_for(condition, seconds=5)
            except AssertionError:
                if attempt == attempts - 1:
                    raise

    def screenshot(self, path: Path) -> None:
        path.write_bytes(base64.b64decode(self._call("GET", "/screenshot")))

    def close(self) -> None:
        self._call("DELETE", "")

    def _call(self, method: str, path: str, body: dict[str, Any] | None = None) -> Any:
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(
            self._session + path,
            data=data,
            method=method,
            headers={"Content-Type": "application/json"},
        )
        with urllib.request.urlopen(request, timeout=120) as answer:
            return json.load(answer)["value"]


@contextmanager
def browsing(profile: Path) -> Iterator[Browser]:
    """A browser with a fresh profile folder; it and its driver are gone afterwards."""
    assert DRIVER
    driver = subprocess.Popen(
        [DRIVER, "--port=0"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    try:
        assert driver.stdout
        port = next(
            match.group(1)
            for line in driver.stdout
            if (match := re.search(r"successfully on port (\d+)", line))
        )
        browser = Browser(f"http://127.0.0.1:{port}", profile)
        try:
            yield browser
        finally:
            browser.close()
    finally:
        driver.terminate()
        driver.wait(timeout=30)
