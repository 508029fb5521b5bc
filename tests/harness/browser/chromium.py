"""A headless Chromium for tests, spoken to in the DevTools protocol.

Sources: the protocol's domains Page, Runtime, Log, Input and Emulation. Where no Chromium is
installed a test is skipped, with that as its reason.
"""

from __future__ import annotations

import asyncio
import base64
import json
import shutil
import subprocess
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

NAMES = ("chromium", "chromium-browser", "google-chrome")
START_S = 30.0
WAIT_S = 30.0
KEYS = {"Enter": 13, "Escape": 27, "ArrowLeft": 37, "ArrowRight": 39, "Tab": 9}
CONTROL = 2  # a modifier


class BrowserPage:
    """One tab. `problems` are what its console has of errors and warnings."""

    def __init__(self, socket: Any) -> None:
        self._socket = socket
        self._num_sent = 0
        self.problems: list[str] = []

    async def call(self, method: str, **parameters: Any) -> Any:
        """Call a method of the protocol and give its result."""
        self._num_sent += 1
        number = self._num_sent
        await self._socket.send(
            json.dumps({"id": number, "method": method, "params": parameters})
        )
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
        if message["method"] == "Runtime.consoleAPICalled" and params["type"] in ("error", "warning"):
            self.problems.append(json.dumps(params["args"])[:500])
        if message["method"] == "Log.entryAdded" and params["entry"]["level"] in ("error", "warning"):
            self.problems.append(params["entry"]["text"][:500])

    async def open(self, url: str) -> None:
        """Go to a page and wait until its script has run."""
        for domain in ("Page", "Runtime", "Log"):
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
        for kind in ("rawKeyDown", "keyUp"):
            await self.call(
                "Input.dispatchKeyEvent",
                type=kind,
                key=key,
                code=key,
                windowsVirtualKeyCode=code,
                modifiers=modifiers,
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

    async def shoot(self, path: Path) -> None:
        """Save a picture of the whole page."""
        shot = await self.call("Page.captureScreenshot", captureBeyondViewport=True)
        path.write_bytes(base64.b64decode(shot["data"]))


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
        options = ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage")
        options += ("--remote-debugging-port=0", f"--user-data-dir={folder}", "--no-first-run")
        process = subprocess.Popen(
            [path, *options, "about:blank"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        try:
            url = await _tab(Path(folder))
            async with client.connect(url, max_size=2**26) as socket:
                yield BrowserPage(socket)
        finally:
            process.terminate()
            await asyncio.to_thread(process.wait, 20)


async def _tab(folder: Path) -> str:
    """Where the first tab is spoken to, as soon as the browser says so."""
    file = folder / "DevToolsActivePort"
    async with asyncio.timeout(START_S):
        while not (file.exists() and "\n" in file.read_text()):
            await asyncio.sleep(0.05)
        port = file.read_text().split("\n")[0]
        async with httpx.AsyncClient() as http:
            while True:
                tabs = (await http.get(f"http://127.0.0.1:{port}/json")).json()
                pages = [tab for tab in tabs if tab["type"] == "page"]
                if pages:
                    return str(pages[0]["webSocketDebuggerUrl"])
                await asyncio.sleep(0.05)
