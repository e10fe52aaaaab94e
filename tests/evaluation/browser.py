"""Headless Chromium over its DevTools protocol: open a page, act on it, see what it complains about."""

from __future__ import annotations

import base64
import contextlib
import json
import shutil
import subprocess
import time
from pathlib import Path
from types import TracebackType
from typing import Any

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
PATIENCE = 600.0  # seconds: a browser that is slow on a busy machine is still one that works
FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--hide-scrollbars",
    "--remote-debugging-port=0",
    "--remote-allow-origins=*",
)


class LeftError(Exception):
    """The page was left for another one while it was asked."""


class Browser:
    """One Chromium with one page.

    `complaints` gathers console errors, exceptions and requests that leave the file, or the server it was sent to.
    """

    def __init__(self, profile: Path) -> None:
        import websocket

        assert CHROMIUM is not None
        command = [CHROMIUM, *FLAGS, f"--user-data-dir={profile}", "about:blank"]
        self._process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        self._last, self.complaints, self._server = 0, list[str](), "file:"
        address = profile / "DevToolsActivePort"
        deadline = time.monotonic() + PATIENCE
        while not (address.exists() and len(address.read_text().splitlines()) == 2):
            assert self._process.poll() is None, "Chromium ended before it began"
            assert time.monotonic() < deadline, "Chromium did not open its debugging port"
            time.sleep(0.05)
        port, path = address.read_text().split()
        self._socket = websocket.create_connection(f"ws://127.0.0.1:{port}{path}", timeout=PATIENCE)
        target = self._call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self._call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def __enter__(self) -> Browser:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._socket.close()
        self._process.kill()
        self._process.wait()

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        return self._call(method, session=self._session, **parameters)

    def size(self, width: int, height: int, *, phone: bool = False, dark: bool = False) -> None:
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=phone)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])

    def open(self, page: Path | str) -> None:
        """Open a file, or the address of a server of this machine."""
        address = page if isinstance(page, str) else page.resolve().as_uri()
        self._server = "/".join(address.split("/")[:3]) if isinstance(page, str) else "file:"
        self.call("Page.navigate", url=address)
        self.wait(f"document.readyState === 'complete' && location.href.startsWith({json.dumps(self._server)})")

    def wait(self, condition: str) -> None:
        """Wait until a script's value is true."""
        deadline = time.monotonic() + PATIENCE
        while True:
            with contextlib.suppress(LeftError):
                if self.run(condition):
                    return
            assert time.monotonic() < deadline, f"it never came true: {condition}"
            time.sleep(0.05)

    def run(self, script: str) -> Any:
        answer = self.call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def click(self, selector: str) -> None:
        """Press the mouse on an element, as a person does."""
        script = "(e => { e.scrollIntoView({block: 'center'}); const b = e.getBoundingClientRect();"
        script += f" return [b.x + b.width / 2, b.y + b.height / 2] }})(document.querySelector({json.dumps(selector)}))"
        x, y = self.run(script)
        for kind in ("mousePressed", "mouseReleased"):
            self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)

    def follow(self, selector: str) -> None:
        """Click on what leads to another page, and wait for that page."""
        self.run("window.before = true")
        self.click(selector)
        self.wait("window.before === undefined && document.readyState === 'complete'")

    def type(self, selector: str, text: str) -> None:
        """Replace the text of a field."""
        self.run(f"document.querySelector({json.dumps(selector)}).select()")
        self.run(f"document.querySelector({json.dumps(selector)}).focus()")
        self.call("Input.insertText", text=text)

    def choose(self, selector: str, file: Path) -> None:
        """Choose a file in a file field."""
        root = self.call("DOM.getDocument")["root"]["nodeId"]
        node = self.call("DOM.querySelector", nodeId=root, selector=selector)["nodeId"]
        self.call("DOM.setFileInputFiles", nodeId=node, files=[str(file)])

    def move(self, x: float, y: float) -> None:
        self.call("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)

    def press(self, key: str) -> None:
        for kind in ("keyDown", "keyUp"):
            self.call("Input.dispatchKeyEvent", type=kind, key=key)

    def screenshot(self, path: Path) -> None:
        shot = self.call("Page.captureScreenshot", captureBeyondViewport=True, format="png")
        path.write_bytes(base64.b64decode(shot["data"]))

    def _call(self, method: str, session: str | None = None, **parameters: Any) -> dict[str, Any]:
        self._last += 1
        message = {"id": self._last, "method": method, "params": parameters}
        self._socket.send(json.dumps({**message, "sessionId": session} if session else message))
        while True:
            answer = json.loads(self._socket.recv())
            if answer.get("id") == self._last:
                if answer.get("error", {}).get("message") == "Inspected target navigated or closed":
                    raise LeftError(f"{method} asked a page that was being left")
                assert "error" not in answer, answer["error"]
                result: dict[str, Any] = answer["result"]
                return result
            self._note(answer.get("method"), answer.get("params", {}))

    def _note(self, event: str | None, details: dict[str, Any]) -> None:
        if event == "Runtime.exceptionThrown":
            self.complaints.append(str(details["exceptionDetails"]))
        elif event == "Log.entryAdded" and details["entry"]["level"] in ("error", "warning"):
            self.complaints.append(details["entry"]["text"])
        elif event == "Runtime.consoleAPICalled" and details["type"] in ("error", "warning", "assert"):
            self.complaints.append(str(details["args"]))
        elif event == "Network.requestWillBeSent":
            url = details["request"]["url"]
            if not url.startswith((self._server, "data:", "about:")):
                self.complaints.append(f"the page asked for {url}")
