"""A page in a headless Chromium that uses a client of npm, unbundled, against another origin.

The page, its script and the client's modules come from a server of our own. So its requests to the
API are cross-origin. It posts the lines of its script (`results.read_checks`) back to that server.
"""

from __future__ import annotations

import contextlib
import functools
import http.server
import json
import os
import signal
import subprocess
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from loadtest.clients.processes import Ended, NotHere, path_of

NAMES = ("chromium", "chromium-browser", "google-chrome")
_OPTIONS = (
    *("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"),
    *("--no-first-run", "--disable-background-networking"),
)
_PAGE = """<!doctype html><meta charset="utf-8"><title>checks</title>
<script type="importmap">{"imports": {"openai": "/node_modules/openai/index.mjs"}}</script>
<script type="module">
const say = (line) => fetch("/lines", {method: "POST", body: JSON.stringify(line)});
try {
  const {run} = await import("/script.mjs");
  await run(%s, say);
} catch (error) {
  await say({error: String(error && error.stack || error)});
}
await say({end: true});
</script>
"""
_END_TIMEOUT_S = 10.0


def browser_path() -> str:
    """Return where a Chromium is.

    Raises:
        NotHere: none is installed.
    """
    for name in NAMES:
        with contextlib.suppress(NotHere):
            return path_of(name)
    raise NotHere(f"skipped: none of {', '.join(NAMES)} is installed")


def browser_version() -> str:
    """Return the browser's version.

    Raises:
        NotHere: none is installed.
    """
    command = [browser_path(), "--version"]
    said = subprocess.run(command, capture_output=True, text=True, check=True)
    return next((word for word in said.stdout.split() if word[:1].isdigit()), "")


@dataclass
class _Said:
    """Lines of a page, and whether it has ended."""

    lines: list[str] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)
    ended: threading.Event = field(default_factory=threading.Event)


def run_page(
    script: Path, modules: Path, arguments: dict[str, str], *, folder: Path, timeout_s: float
) -> Ended:
    """Run a script's `run(arguments, say)` in a page; what it said is the output.

    Args:
        script: an ES module.
        modules: the folder of packages that it imports.
        arguments: of the script.
        folder: an empty one for the browser's files.
        timeout_s: of all of it.

    Raises:
        NotHere: no browser is installed.
    """
    program, said = browser_path(), _Said()
    with _page_server(script, modules, arguments, said) as origin:
        command = [program, *_OPTIONS, f"--user-data-dir={folder}/profile", f"{origin}/"]
        quiet = subprocess.DEVNULL
        browser = subprocess.Popen(
            command, stdin=quiet, stdout=quiet, stderr=quiet, start_new_session=True
        )
        try:
            has_ended = said.ended.wait(timeout_s)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(browser.pid, signal.SIGKILL)
            browser.wait(_END_TIMEOUT_S)
    status = (1 if said.errors else 0) if has_ended else None
    return Ended(status, "\n".join(said.lines), "\n".join(said.errors))


@contextlib.contextmanager
def _page_server(
    script: Path, modules: Path, arguments: dict[str, str], said: _Said
) -> Iterator[str]:
    handler = functools.partial(
        _Handler,
        page=(_PAGE % json.dumps(arguments)).encode(),
        script=script,
        said=said,
        directory=str(modules.parent),
    )
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join(_END_TIMEOUT_S)


class _Handler(http.server.SimpleHTTPRequestHandler):
    """The page, its script, the modules below `directory`, and a place for lines."""

    def __init__(
        self, *arguments: Any, page: bytes, script: Path, said: _Said, **options: Any
    ) -> None:
        self._page, self._script, self._said = page, script, said
        super().__init__(*arguments, **options)

    def do_GET(self) -> None:
        """Answer with a file, or the page."""
        if self.path == "/":
            self._answer(self._page, "text/html")
        elif self.path == "/script.mjs":
            self._answer(self._script.read_bytes(), "text/javascript")
        else:
            super().do_GET()

    def do_POST(self) -> None:
        """Take a line."""
        line = self.rfile.read(int(self.headers["content-length"])).decode()
        content = json.loads(line)
        if "error" in content and "check" not in content:
            self._said.errors.append(f"error: {content['error']}")
        elif content.get("end"):
            self._said.ended.set()
        else:
            self._said.lines.append(line)
        self._answer(b"", "text/plain")

    def log_message(self, *arguments: object) -> None:
        """Say nothing."""

    def _answer(self, body: bytes, kind: str) -> None:
        self.send_response(200)
        self.send_header("content-type", kind)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
