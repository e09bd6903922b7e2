"""Chromium without a screen, driven through ChromeDriver, to look at pages as readers see them.

The protocol is W3C WebDriver over HTTP on this machine; a page is a file, so nothing is fetched.
"""

import base64
import json
import shutil
import socket
import subprocess
import time
import urllib.error
import urllib.request
from pathlib import Path

import pytest

FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--disable-dev-shm-usage",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--hide-scrollbars",
)
SKIPPED = "needs Chromium and ChromeDriver: apt-get install chromium chromium-driver"
FAULTS = Path(__file__).with_name("page_faults.js").read_text()
CONTRAST = Path(__file__).with_name("page_contrast.js").read_text()


class Browser:
    """One window; `look` opens a page at a width, in light or dark colours."""

    def __init__(self, profile: Path) -> None:
        driver, browser = shutil.which("chromedriver"), shutil.which("chromium")
        if driver is None or browser is None:
            pytest.skip(SKIPPED)
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        self.process = subprocess.Popen(
            [driver, f"--port={port}"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        self.address = f"http://127.0.0.1:{port}"
        self._wait_until_ready()
        options = {"binary": browser, "args": [*FLAGS, f"--user-data-dir={profile}"]}
        wanted = {"goog:chromeOptions": options, "goog:loggingPrefs": {"browser": "ALL"}}
        session = self.call("/session", {"capabilities": {"alwaysMatch": wanted}})
        self.session = f"/session/{session['sessionId']}"

    def close(self) -> None:
        self.call(self.session, method="DELETE")
        self.process.terminate()
        self.process.wait(timeout=20)

    def look(self, page: Path, width: int, scheme: str = "light", height: int = 900) -> None:
        """Open the page in a window of this width."""
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        self.command("Emulation.setDeviceMetricsOverride", size)
        media = {"features": [{"name": "prefers-color-scheme", "value": scheme}]}
        self.command("Emulation.setEmulatedMedia", media)
        self.call(f"{self.session}/url", {"url": page.as_uri()})

    def run(self, script: str) -> object:
        """The value that a script returns."""
        return self.call(f"{self.session}/execute/sync", {"script": script, "args": []})

    def messages(self) -> list[str]:
        """What the pages have written to the console since the last call."""
        found = self.call(f"{self.session}/se/log", {"type": "browser"})
        return [message["message"] for message in found]

    def screenshot(self, path: Path) -> None:
        """The full page as a PNG."""
        taken = self.command("Page.captureScreenshot", {"captureBeyondViewport": True})
        path.write_bytes(base64.b64decode(taken["data"]))

    def command(self, name: str, parameters: dict) -> dict:
        return self.call(f"{self.session}/goog/cdp/execute", {"cmd": name, "params": parameters})

    def call(self, path: str, body: dict | None = None, method: str = "POST") -> dict:
        data = None if method == "DELETE" else json.dumps(body or {}).encode()
        request = urllib.request.Request(self.address + path, data, method=method)
        try:
            with urllib.request.urlopen(request, timeout=60) as answer:
                return json.load(answer)["value"]
        except urllib.error.HTTPError as error:
            raise RuntimeError(json.load(error)["value"]["message"]) from error

    def _wait_until_ready(self) -> None:
        for _ in range(200):
            try:
                with urllib.request.urlopen(f"{self.address}/status", timeout=5):
                    return
            except OSError:
                time.sleep(0.1)
        raise RuntimeError("ChromeDriver did not start within twenty seconds.")
