"""A real headless Chromium, driven over the DevTools protocol."""

from __future__ import annotations

import base64
import json
import shutil
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.request import urlopen

from websockets.sync.client import connect

NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")
FLAGS = (
    *("--headless=new", "--no-sandbox", "--disable-gpu", "--remote-debugging-port=0"),
    *("--autoplay-policy=no-user-gesture-required", "--disable-dev-shm-usage", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--mute-audio"),
)


def executable() -> str | None:
    """The browser of this machine, if it has one."""
    return next((found for name in NAMES if (found := shutil.which(name))), None)


class Browser:
    """One page in a browser of its own: ``open``, ``run`` JavaScript, see what it logged."""

    def __init__(self, profile: Path, width: int = 1280, height: int = 900) -> None:
        size = f"--window-size={width},{height}"
        command = [str(executable()), *FLAGS, size, f"--user-data-dir={profile}", "about:blank"]
        quiet = subprocess.DEVNULL
        self.process = subprocess.Popen(command, stdout=quiet, stderr=quiet)
        file = profile / "DevToolsActivePort"
        self.until(lambda: file.exists() and file.read_text().strip(), 60.0)
        with urlopen(f"http://127.0.0.1:{file.read_text().split()[0]}/json/list") as answer:
            page = next(one for one in json.load(answer) if one["type"] == "page")
        self.socket = connect(page["webSocketDebuggerUrl"], max_size=None)
        self.last, self.events = 0, list[dict[str, Any]]()
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")
        screen = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600}
        self.call("Emulation.setDeviceMetricsOverride", **screen)

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """One command of the protocol and its answer."""
        self.last += 1
        self.socket.send(json.dumps({"id": self.last, "method": method, "params": parameters}))
        while True:
            message = json.loads(self.socket.recv(timeout=60))
            if message.get("id") == self.last:
                assert "error" not in message, message
                return message["result"]
            self.events.append(message)

    def open(self, address: str) -> None:
        """Go to a page and wait until it has loaded."""
        self.call("Page.navigate", url=address)
        self.until(lambda: self.run("document.readyState") == "complete")

    def run(self, code: str) -> Any:
        """The value of a JavaScript expression."""
        how = {"expression": code, "returnByValue": True, "awaitPromise": True}
        answer = self.call("Runtime.evaluate", **how)
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def until(self, holds: Callable[[], Any], patience: float = 30.0) -> None:
        """Wait until something holds."""
        end = time.monotonic() + patience
        while not holds():
            assert time.monotonic() < end, "it did not come to hold in time"
            time.sleep(0.05)

    def key(self, key: str) -> None:
        """Press a key."""
        text = {"text": key} if len(key) == 1 else {}
        for kind in ("keyDown", "keyUp"):
            self.call("Input.dispatchKeyEvent", type=kind, key=key, **text)

    def click(self, x: float, y: float) -> None:
        """Click at a place of the window."""
        for kind in ("mousePressed", "mouseReleased"):
            self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)

    def complaints(self) -> list[str]:
        """Errors of the console, and exceptions."""
        self.run("0")  # what waits is read first
        given = [(event["method"], event.get("params", {})) for event in self.events]
        return [
            json.dumps(what)[:400]
            for method, what in given
            if method == "Runtime.exceptionThrown"
            or (method == "Log.entryAdded" and what["entry"]["level"] == "error")
            or (method == "Runtime.consoleAPICalled" and what["type"] == "error")
        ]

    def requests(self) -> list[str]:
        """Addresses asked for, embedded ones aside."""
        self.run("0")
        sent = [e["params"] for e in self.events if e["method"] == "Network.requestWillBeSent"]
        addresses = [given["request"]["url"] for given in sent]
        return [url for url in addresses if not url.startswith(("data:", "blob:"))]

    def screenshot(self, path: Path, full: bool = False) -> None:
        """The window, or the whole page, as PNG."""
        answer = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=full)
        path.write_bytes(base64.b64decode(answer["data"]))

    def close(self) -> None:
        """End the browser."""
        self.socket.close()
        self.process.terminate()
        self.process.wait(timeout=30)
