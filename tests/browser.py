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
    paths = map(shutil.which, NAMES)
    return next(filter(None, paths), None)


class Browser:
    """One page in a browser of its own: ``open``, ``run`` JavaScript, see what it logged."""

    def __init__(
        self, profile: Path, width: int = 1280, height: int = 900, scheme: str = "light"
    ) -> None:
        size = f"--window-size={width},{height}"
        command = [str(executable()), *FLAGS, size, f"--user-data-dir={profile}", "about:blank"]
        quiet = subprocess.DEVNULL
        self.process = subprocess.Popen(command, stdout=quiet, stderr=quiet)
        file = profile / "DevToolsActivePort"
        self.until(lambda: file.exists() and file.read_text().strip(), 60.0)
        with urlopen(f"http://127.0.0.1:{file.read_text().split()[0]}/json/list") as answer:
            page = next(target for target in json.load(answer) if target["type"] == "page")
        self.socket = connect(page["webSocketDebuggerUrl"], max_size=None)
        self.last, self.events = 0, list[dict[str, Any]]()
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")
        screen = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600}
        self.call("Emulation.setDeviceMetricsOverride", **screen)
        preference = {"name": "prefers-color-scheme", "value": scheme}
        self.call("Emulation.setEmulatedMedia", features=[preference])

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

    def point_at(self, selector: str) -> None:
        """Move the pointer over the middle of an element."""
        x, y = self.run(
            f"{{ const node = document.querySelector({json.dumps(selector)});"
            " node.scrollIntoView({block: 'center'}); const r = node.getBoundingClientRect();"
            " [r.left + r.width / 2, r.top + r.height / 2] }"
        )
        self.call("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)

    def complaints(self) -> list[str]:
        """Errors of the console, and exceptions."""
        self.run("0")  # what waits is read first
        errors = []
        for event in self.events:
            method, details = event["method"], event.get("params", {})
            if (
                method == "Runtime.exceptionThrown"
                or (method == "Log.entryAdded" and details["entry"]["level"] == "error")
                or (method == "Runtime.consoleAPICalled" and details["type"] == "error")
            ):
                errors.append(json.dumps(details)[:400])
        return errors

    def requests(self) -> list[str]:
        """Addresses asked for, embedded ones aside."""
        self.run("0")
        sent = [e["params"] for e in self.events if e["method"] == "Network.requestWillBeSent"]
        addresses = [parameters["request"]["url"] for parameters in sent]
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
