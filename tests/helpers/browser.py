"""A real browser for tests of pages: Chromium, by the WebDriver protocol of its driver; and axe-core from npm."""

from __future__ import annotations

import base64
import os
import re
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import requests

AXE = "4.14.1"
FLAGS = (
    "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking "
    "--disable-component-update --disable-sync --disable-dev-shm-usage --force-color-profile=srgb --hide-scrollbars"
)
ELEMENT = "element-6066-11e4-a52e-4f735466cecf"  # the protocol's key of an element
CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "raydist-tests"


def absent(what: str) -> None:
    """Skip for want of a program; in CI, fail."""
    if os.environ.get("CI") == "true":
        pytest.fail(f"{what}: .ci/run installs it", pytrace=False)
    pytest.skip(what)


class Browser:
    """A session of Chromium."""

    def __init__(self, driver: str, profile: Path) -> None:
        options = {"args": [*FLAGS.split(), f"--user-data-dir={profile}"], "binary": shutil.which("chromium")}
        wanted = {"goog:chromeOptions": options, "goog:loggingPrefs": {"browser": "ALL"}}
        self._http = requests.Session()
        self._http.trust_env = False  # no proxy
        made = self._send("POST", f"{driver}/session", {"capabilities": {"alwaysMatch": wanted}})
        self._session = f"{driver}/session/{made['sessionId']}"

    def _send(self, method: str, url: str, body: dict[str, Any] | None = None) -> Any:
        said = self._http.request(method, url, json=body, timeout=60).json()["value"]
        assert not (isinstance(said, dict) and "error" in said), said
        return said

    def command(self, path: str, **body: Any) -> Any:
        return self._send("POST", f"{self._session}/{path}", body)

    def cdp(self, name: str, **parameters: Any) -> Any:
        return self.command("goog/cdp/execute", cmd=name, params=parameters)

    def open(self, url: str) -> None:
        self.command("url", url=url)

    def run(self, script: str, *arguments: Any) -> Any:
        return self.command("execute/sync", script=script, args=list(arguments))

    def run_async(self, script: str) -> Any:
        """The last argument of the script is called with its result."""
        return self.command("execute/async", script=script, args=[])

    def find(self, css: str) -> str:
        return self.until(lambda: self.command("elements", using="css selector", value=css), css)[0][ELEMENT]

    def click(self, css: str) -> None:
        self.command(f"element/{self.find(css)}/click")

    def type(self, css: str, text: str) -> None:
        self.command(f"element/{self.find(css)}/clear")
        self.command(f"element/{self.find(css)}/value", text=text)

    def press(self, *keys: str) -> None:
        """Keys to whatever has the focus."""
        strokes = [{"type": kind, "value": key} for key in keys for kind in ("keyDown", "keyUp")]
        self.command("actions", actions=[{"type": "key", "id": "keyboard", "actions": strokes}])

    def text(self, css: str = "body") -> str:
        return self.run("return document.querySelector(arguments[0])?.innerText ?? ''", css)

    def until(self, what, told: str = "", seconds: float = 15.0) -> Any:
        ends = time.monotonic() + seconds
        while not (found := what()):
            assert time.monotonic() < ends, f"waited in vain for {told or what}: {self.text()[:1500]}"
            time.sleep(0.03)
        return found

    def until_text(self, text: str, css: str = "body") -> None:
        self.until(lambda: text in self.text(css), f"{text!r} in {css}")

    def log(self) -> list[str]:
        """What the console was told since the last call."""
        return [entry["message"] for entry in self.command("se/log", type="browser")]

    def look(self, *, width: int = 1280, height: int = 900, dark: bool = False) -> None:
        """The size of the window, and the colours that the user prefers."""
        self.cdp("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.cdp("Emulation.setEmulatedMedia", features=[scheme])

    def picture(self, file: Path) -> None:
        content = self._send("GET", f"{self._session}/screenshot")
        file.write_bytes(base64.b64decode(content))

    def faults(self) -> list[str]:
        """What axe-core finds that is serious or critical."""
        self.cdp("Page.setBypassCSP", enabled=True)
        self.run(axe_script() + "; window.axe = axe;")
        found = self.run_async("const end = arguments[0]; axe.run().then((r) => end(r.violations), (e) => end(String(e)))")
        self.cdp("Page.setBypassCSP", enabled=False)
        assert isinstance(found, list), found
        return [
            f"{each['id']}: {each['help']}: {node['html']}"
            for each in found
            for node in each["nodes"]
            if each["impact"] in ("serious", "critical")
        ]

    def end(self) -> None:
        self._send("DELETE", self._session)


@contextmanager
def chromium(profile: Path) -> Iterator[Browser]:
    """A browser with a new, empty profile; skips where there is none."""
    for program in ("chromium", "chromedriver"):
        if not shutil.which(program):
            absent(f"there is no {program} (Debian: apt-get install chromium chromium-driver)")
    driver = subprocess.Popen(["chromedriver", "--port=0"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    try:
        assert driver.stdout
        port = next(found[1] for line in driver.stdout if (found := re.search(r"started successfully on port (\d+)", line)))
        browser = Browser(f"http://127.0.0.1:{port}", profile)
        try:
            yield browser
        finally:
            browser.end()
    finally:
        driver.terminate()
        driver.wait(10)


def axe_script() -> str:
    """axe-core's text, from npm by way of a folder that stays."""
    folder = CACHE / f"axe-core-{AXE}"
    file = folder / "node_modules/axe-core/axe.min.js"
    if not file.is_file():
        if not shutil.which("npm"):
            absent("there is no npm, which axe-core comes from (Debian: apt-get install npm)")
        folder.mkdir(parents=True, exist_ok=True)
        command = ["npm", "install", "--no-audit", "--no-fund", "--ignore-scripts", "--prefix", str(folder), f"axe-core@{AXE}"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
        if done.returncode:
            absent(f"npm does not get axe-core: {done.stderr[-300:]}")
    return file.read_text(encoding="utf-8")
