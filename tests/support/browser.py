"""A real browser, by its DevTools protocol: what a page shows, says and fetches, and a picture of it."""

import base64
import json
import os
import select
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, Literal

from runner.setup.machine import Package, install_packages
from tests.support.waiting import until

Scheme = Literal["light", "dark"]

PACKAGE = Package("chromium-headless-shell", ("chromium-headless-shell",), "opens pages in tests")
FONTS = Package("fonts-liberation", (), "has the letters of these pages")
_ANSWER_S = 30.0


def browser_program() -> str:
    """A Chromium of this machine; Debian's is installed where there is none (96 MB, some 15 s)."""
    names = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome")
    present = next(filter(None, map(shutil.which, names)), None)
    if present is None:
        install_packages([PACKAGE, FONTS], lambda _line: None)
        present = shutil.which(PACKAGE.name)
        assert present is not None
    return present


class Tab:
    """An open page.

    Attributes:
        complaints: what its console and its log said of errors and warnings, and what it tried to fetch.
    """

    def __init__(self, process: subprocess.Popen[bytes], to: int, back: int) -> None:
        self._process, self._to, self._back = process, to, back
        self._number, self._buffer, self._session = 0, b"", ""
        self.complaints: list[str] = []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network", "Accessibility"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **parameters: Any) -> Any:
        """The answer to a command of the protocol; events that come before it are looked at."""
        self._number += 1
        message: dict[str, Any] = {"id": self._number, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._to, json.dumps(message).encode() + b"\0")
        while (answer := self._next()).get("id") != self._number:
            self._look_at(answer)
        assert "error" not in answer, f"{method}: {answer['error']}"
        return answer["result"]

    def open(self, address: str, width: int, scheme: Scheme, height: int = 900) -> None:
        """Load a page as a screen of that width shows it."""
        self.resize(width, height)
        self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
        self.call("Page.navigate", url=address)
        until(lambda: self.evaluate("document.readyState") == "complete", "the page", timeout_s=_ANSWER_S)

    def resize(self, width: int, height: int) -> None:
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)

    def printed(self) -> bytes:
        return base64.b64decode(self.call("Page.printToPDF", printBackground=True)["data"])

    def picture(self) -> bytes:
        """What the screen shows, as PNG."""
        return base64.b64decode(self.call("Page.captureScreenshot", format="png")["data"])

    def click(self, selector: str) -> None:
        """As a mouse does, in the middle of what the selector names."""
        box = f"document.querySelector({json.dumps(selector)}).getBoundingClientRect().toJSON()"
        where = self.evaluate(box)
        at = {"x": where["x"] + where["width"] / 2, "y": where["y"] + where["height"] / 2}
        for kind in ("mousePressed", "mouseReleased"):
            self.call("Input.dispatchMouseEvent", type=kind, **at, button="left", clickCount=1)

    def evaluate(self, expression: str) -> Any:
        answer = self.call("Runtime.evaluate", expression=expression, returnByValue=True)
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    def names(self, role: str) -> list[str]:
        """The accessible names of everything that has this role."""
        nodes = self.call("Accessibility.getFullAXTree")["nodes"]
        shown = [node for node in nodes if not node["ignored"] and node.get("role", {}).get("value") == role]
        return [node.get("name", {}).get("value", "") for node in shown]

    def _next(self) -> dict[str, Any]:
        while b"\0" not in self._buffer:
            ready, _, _ = select.select([self._back], [], [], _ANSWER_S)
            assert ready, "the browser does not answer"
            read = os.read(self._back, 1 << 20)
            assert read, "the browser has ended"
            self._buffer += read
        message, _, self._buffer = self._buffer.partition(b"\0")
        answer: dict[str, Any] = json.loads(message)
        return answer

    def _look_at(self, event: dict[str, Any]) -> None:
        method, about = event.get("method"), event.get("params", {})
        if method in ("Runtime.consoleAPICalled", "Runtime.exceptionThrown", "Log.entryAdded"):
            self.complaints.append(json.dumps(about)[:500])
        elif method == "Network.requestWillBeSent" and not about["request"]["url"].startswith(
            ("file:", "data:", "about:")
        ):
            self.complaints.append(f"fetches {about['request']['url']}")


@contextmanager
def tab() -> Iterator[Tab]:
    to_read, to_write = os.pipe()
    back_read, back_write = os.pipe()

    def give_pipes() -> None:
        # By copies: one of the pipes may have the other's number.
        reading, writing = os.dup(to_read), os.dup(back_write)
        os.dup2(reading, 3)
        os.dup2(writing, 4)

    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        process = subprocess.Popen(
            [browser_program(), "--headless", "--remote-debugging-pipe", "--no-sandbox", "--disable-gpu",
             "--no-first-run", "--disable-dev-shm-usage", "--hide-scrollbars", f"--user-data-dir={profile}"],
            pass_fds=(3, 4), preexec_fn=give_pipes, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,  # noqa: PLW1509
        )  # fmt: skip
        os.close(to_read)
        os.close(back_write)
        try:
            yield Tab(process, to_write, back_read)
        finally:
            process.terminate()
            with suppress(subprocess.TimeoutExpired):
                process.wait(20)
            process.kill()
            process.wait(20)
            os.close(to_write)
            os.close(back_read)
