"""A headless Chromium for tests, spoken to in the DevTools protocol.

Sources: the protocol's domains Page, Runtime, Log, Input and Emulation. Where no Chromium is
installed a test is skipped, with that as its reason.
"""

from __future__ import annotations

import asyncio
import base64
import json
import shutil
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

NAMES = ("chromium", "chromium-browser", "google-chrome")
OPTIONS = (
    *("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"),
    *("--no-first-run", "--remote-debugging-port=0"),
)
START_S = 30.0
WAIT_S = 30.0
KEYS = {"Enter": 13, "Escape": 27, "ArrowLeft": 37, "ArrowRight": 39, "Tab": 9}
CONTROL = 2  # a modifier


class BrowserPage:
    """One tab.

    Attributes:
        problems: what its console has of errors and warnings.
        requests: the ids of the requests that its pages have made, by their URL's last part.
    """

    def __init__(self, socket: Any) -> None:
        self._socket = socket
        self._num_sent = 0
        self.problems: list[str] = []
        self.requests: dict[str, str] = {}

    async def call(self, method: str, **parameters: Any) -> Any:
        """Call a method of the protocol and give its result."""
        self._num_sent += 1
        number = self._num_sent
        await self._socket.send(json.dumps({"id": number, "method": method, "params": parameters}))
        while True:
            async with asyncio.timeout(WAIT_S):
                message = json.loads(await self._socket.recv())
            if message.get("id") == number:
                assert "error" not in message, (method, message["error"])
                return message["result"]
            self._note(message)

    def _note(self, message: Any) -> None:
        params = message.get("params", {})
        if message["method"] == "Runtime.exceptionThrown":
            self.problems.append(json.dumps(params["exceptionDetails"])[:500])
        if message["method"] == "Runtime.consoleAPICalled" and params["type"] in (
            "error",
            "warning",
        ):
            self.problems.append(json.dumps(params["args"])[:500])
        if message["method"] == "Log.entryAdded" and params["entry"]["level"] in (
            "error",
            "warning",
        ):
            self.problems.append(params["entry"]["text"][:500])
        if message["method"] == "Network.responseReceived":
            self.requests[params["response"]["url"].rsplit("/", 1)[-1]] = params["requestId"]

    async def open(self, url: str) -> None:
        """Go to a page and wait until its script has run."""
        for domain in ("Page", "Runtime", "Log", "Network"):
            await self.call(f"{domain}.enable")
        await self.call("Page.navigate", url=url)
        await self.until("document.readyState === 'complete'")

    async def run(self, script: str) -> Any:
        """The value of an expression, awaited where it is a promise."""
        found = await self.call(
            "Runtime.evaluate",
            expression=script,
            awaitPromise=True,
            returnByValue=True,
            userGesture=True,
        )
        assert "exceptionDetails" not in found, (script[:200], found["exceptionDetails"])
        return found["result"].get("value")

    async def answered(self, name: str) -> str:
        """What the last request to a URL that ends so was answered."""
        found = await self.call("Network.getResponseBody", requestId=self.requests[name])
        return str(found["body"])

    async def until(self, script: str, limit_s: float = WAIT_S) -> None:
        """Wait until an expression is true."""
        end = asyncio.get_running_loop().time() + limit_s
        while not await self.run(f"Boolean({script})"):
            assert asyncio.get_running_loop().time() < end, f"never: {script}; {self.problems}"
            await asyncio.sleep(0.05)

    async def text(self, selector: str) -> str:
        """The text of an element."""
        return str(await self.run(f"document.querySelector({json.dumps(selector)}).textContent"))

    async def click(self, selector: str) -> None:
        """Click an element where it lies, as a mouse does."""
        place = f"document.querySelector({json.dumps(selector)})"
        await self.run(f"{place}.scrollIntoView({{block: 'center'}})")
        box = await self.run(f"JSON.stringify({place}.getBoundingClientRect())")
        at = json.loads(box)
        where = {"x": at["x"] + at["width"] / 2, "y": at["y"] + at["height"] / 2}
        for kind in ("mouseMoved", "mousePressed", "mouseReleased"):
            await self.call(
                "Input.dispatchMouseEvent", type=kind, button="left", clickCount=1, **where
            )

    async def hover(self, selector: str) -> None:
        """Move the mouse over an element."""
        place = f"document.querySelector({json.dumps(selector)})"
        at = json.loads(await self.run(f"JSON.stringify({place}.getBoundingClientRect())"))
        x, y = at["x"] + at["width"] / 2, at["y"] + at["height"] / 2
        await self.call("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)

    async def fill(self, selector: str, text: str) -> None:
        """Type over what a field has."""
        place = f"document.querySelector({json.dumps(selector)})"
        await self.run(f"{place}.focus(), {place}.select()")
        await self.call("Input.insertText", text=text)

    async def press(self, key: str, modifiers: int = 0) -> None:
        """Press a key and let it go."""
        code = KEYS[key]
        typed = {"text": "\r"} if key == "Enter" and not modifiers else {}
        for kind in ("keyDown" if typed else "rawKeyDown", "keyUp"):
            await self.call(
                "Input.dispatchKeyEvent",
                type=kind,
                key=key,
                code=key,
                windowsVirtualKeyCode=code,
                modifiers=modifiers,
                **typed,
            )

    async def look(self, *, width: int, height: int, is_dark: bool) -> None:
        """Set the size of the window and the colours that its reader prefers."""
        await self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=width < 600,
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if is_dark else "light"}
        await self.call("Emulation.setEmulatedMedia", features=[scheme])

    async def picture(self) -> bytes:
        """A picture of the whole page, a PNG."""
        shot = await self.call("Page.captureScreenshot", captureBeyondViewport=True)
        return base64.b64decode(shot["data"])


def chromium_path() -> str:
    """The browser; the test is skipped where there is none."""
    found = next((path for name in NAMES if (path := shutil.which(name))), None)
    if found is None:
        pytest.skip(f"no browser: none of {', '.join(NAMES)} is installed")
    return found


@asynccontextmanager
async def browser_page() -> AsyncIterator[BrowserPage]:
    """An empty tab of a browser that ends with the block."""
    client = pytest.importorskip("websockets.asyncio.client", reason="websockets is not installed")
    path = chromium_path()
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        quiet = asyncio.subprocess.DEVNULL
        options = [*OPTIONS, f"--user-data-dir={folder}", "about:blank"]
        process = await asyncio.create_subprocess_exec(path, *options, stdout=quiet, stderr=quiet)
        try:
            url = await asyncio.to_thread(tab_url, Path(folder))
            async with client.connect(url, max_size=2**26) as socket:
                yield BrowserPage(socket)
        finally:
            process.terminate()
            async with asyncio.timeout(START_S):
                await process.wait()


def tab_url(folder: Path) -> str:
    """Where the first tab is spoken to, as soon as the browser says so."""
    file = folder / "DevToolsActivePort"
    end = time.monotonic() + START_S
    while time.monotonic() < end:
        if file.exists() and "\n" in (text := file.read_text()):
            port = text.split("\n")[0]
            for tab in httpx.get(f"http://127.0.0.1:{port}/json").json():
                if tab["type"] == "page":
                    return str(tab["webSocketDebuggerUrl"])
        time.sleep(0.05)
    raise TimeoutError(f"the browser opened no tab within {START_S} s")
