"""Headless Chromium, driven through its debugging pipe: pages as a person sees them, without another package."""

from __future__ import annotations

import base64
import json
import os
import shutil
import subprocess
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome")
OPTIONS = (
    "--headless=new",
    "--remote-debugging-pipe",
    "--no-sandbox",  # a container may allow none; the pages are our own
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--no-first-run",
    "--no-default-browser-check",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-extensions",
    "--hide-scrollbars",
    "--force-color-profile=srgb",
)


def chromium() -> str | None:
    """The command of a Chromium of this machine; None if there is none."""
    return next((found for name in NAMES if (found := shutil.which(name))), None)


class Browser:
    """One tab.

    Attributes:
        errors: Messages of the console and uncaught exceptions since the page was opened.
        requests: URLs that were requested since then.
    """

    def __init__(self, asked: int, told: int) -> None:
        self._asked, self._told = asked, told
        self._number = 0
        self._session: str | None = None
        self._buffer = b""
        self._events: deque[dict[str, Any]] = deque()
        self.errors: list[str] = []
        self.requests: list[str] = []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Network", "Log"):
            self.call(f"{domain}.enable")
        self.size(1280, 900)

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """The result of a method of the protocol."""
        self._number += 1
        message = {"id": self._number, "method": method, "params": parameters}
        if self._session is not None:
            message["sessionId"] = self._session
        data = json.dumps(message).encode() + b"\0"
        while data:
            data = data[os.write(self._asked, data) :]
        while True:
            found = self._message()
            if found.get("id") == self._number:
                assert "error" not in found, (method, found["error"])
                return dict(found["result"])
            self._note(found)

    def open(self, url: str) -> None:
        """Open a page, and wait until it is loaded."""
        self.errors, self.requests = [], []
        self._events.clear()
        self.call("Page.navigate", url=url)
        self._wait_for("Page.loadEventFired")

    def follow(self, script: str) -> None:
        """Run what leads to another page, and wait until that is loaded."""
        self._events.clear()
        self.run(script)
        self._wait_for("Page.loadEventFired")

    def run(self, script: str) -> Any:
        """The value of an expression in the page; of a promise, once it is there."""
        done = self.call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True, userGesture=True)
        assert "exceptionDetails" not in done, done["exceptionDetails"]
        return done["result"].get("value")

    def until(self, script: str) -> Any:
        """The value of an expression once it is true; what it is after a minute, if it does not become true."""
        return self.run(
            f"new Promise((done) => {{ const end = Date.now() + 60000; const look = () => {{ const found = ({script});"
            " if (found || Date.now() > end) { done(found); } else { setTimeout(look, 20); } }; look(); })"
        )

    def press(self, key: str, *, opens: bool = False) -> None:
        """Press a key; if it opens a page, wait until that is loaded."""
        self._events.clear()
        text = {"text": key} if len(key) == 1 else {"text": "\r"} if key == "Enter" else {}
        self.call("Input.dispatchKeyEvent", type="keyDown", key=key, **text)
        self.call("Input.dispatchKeyEvent", type="keyUp", key=key)
        if opens:
            self._wait_for("Page.loadEventFired")

    def size(self, width: int, height: int, scale: float = 1) -> None:
        """Set the size of the window, in CSS pixels."""
        self.call(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=scale, mobile=False
        )

    def prefer(self, **features: str) -> None:
        """Set media features, such as ``prefers_color_scheme``."""
        given = [{"name": name.replace("_", "-"), "value": value} for name, value in features.items()]
        self.call("Emulation.setEmulatedMedia", features=given)

    def scripts(self, *, on: bool) -> None:
        """Switch JavaScript on or off for pages that are opened next."""
        self.call("Emulation.setScriptExecutionDisabled", value=not on)

    def screenshot(self) -> bytes:
        """What the window shows, as a PNG file."""
        return base64.b64decode(self.call("Page.captureScreenshot", format="png")["data"])

    def _wait_for(self, method: str) -> None:
        while not any(each["method"] == method for each in self._events):
            self._note(self._message())

    def _note(self, message: dict[str, Any]) -> None:
        method, about = message.get("method", ""), message.get("params", {})
        self._events.append(message)
        if method == "Network.requestWillBeSent":
            self.requests.append(about["request"]["url"])
        elif method == "Runtime.exceptionThrown":
            self.errors.append(about["exceptionDetails"]["text"])
        elif method == "Runtime.consoleAPICalled" and about["type"] in ("error", "warning"):
            self.errors.append(str(about["args"]))
        elif method == "Log.entryAdded" and about["entry"]["level"] in ("error", "warning"):
            self.errors.append(f"{about['entry']['text']} {about['entry'].get('url', '')}")

    def _message(self) -> dict[str, Any]:
        while b"\0" not in self._buffer:
            data = os.read(self._told, 1 << 20)
            assert data, "the browser has ended"
            self._buffer += data
        line, _, self._buffer = self._buffer.partition(b"\0")
        return dict(json.loads(line))


@contextmanager
def browsing(profile: Path) -> Iterator[Browser]:
    """A browser with a new profile, until the block ends."""
    command = chromium()
    assert command is not None
    (asked_there, asked), (told, told_there) = os.pipe(), os.pipe()
    # Chromium reads from descriptor 3 and writes to 4.
    line = f'exec "$@" 3<&{asked_there} 4>&{told_there}'
    options = [*OPTIONS, f"--user-data-dir={profile}"]
    process = subprocess.Popen(
        ["/bin/bash", "-c", line, "chromium", command, *options],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        pass_fds=(asked_there, told_there),
    )
    os.close(asked_there)
    os.close(told_there)
    try:
        yield Browser(asked, told)
    finally:
        process.kill()
        process.wait()
        os.close(asked)
        os.close(told)
