"""An HTTP server whose every answer is a script of the test's."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

Script = Callable[[BaseHTTPRequestHandler], None]


def answer(
    body: bytes,
    status: int = 200,
    *,
    headers: Mapping[str, str] | None = None,
    announced_bytes: int | None = None,
) -> Script:
    """Answers with `body`, of which a header may announce more than come."""

    def script(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(status)
        for name, value in (headers or {}).items():
            handler.send_header(name, value)
        handler.send_header("content-length", str(announced_bytes or len(body)))
        handler.end_headers()
        handler.wfile.write(body)

    return script


class ScriptedServer:
    """Answers every POST by `script` as it then is."""

    def __init__(self, script: Script) -> None:
        self.script = script
        scripted = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                self.rfile.read(int(self.headers["content-length"]))
                scripted.script(self)

            def log_message(self, format: str, *args: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,))
        self._thread.start()

    def close(self) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


@contextmanager
def scripted_server(script: Script) -> Iterator[ScriptedServer]:
    """A server until the block ends."""
    server = ScriptedServer(script)
    try:
        yield server
    finally:
        server.close()
