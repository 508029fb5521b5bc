"""An HTTP server whose every answer is a script of the test's."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class Request(BaseHTTPRequestHandler):
    """A request with its body, which the server's script answers."""

    server: _Server
    body = b""

    def do_GET(self) -> None:
        self.body = self.rfile.read(int(self.headers.get("content-length", 0)))
        self.server.scripted.script(self)

    do_HEAD = do_POST = do_GET

    def log_message(self, format: str, *args: object) -> None:
        pass


Script = Callable[[Request], None]


def answer(
    body: bytes,
    status: int = 200,
    *,
    headers: Mapping[str, str] | None = None,
    announced_bytes: int | None = None,
) -> Script:
    """Answers with `body`, of which a header may announce more than come."""

    def script(request: Request) -> None:
        request.send_response(status)
        for name, value in (headers or {}).items():
            request.send_header(name, value)
        request.send_header("content-length", str(announced_bytes or len(body)))
        request.end_headers()
        if request.command != "HEAD":
            request.wfile.write(body)

    return script


class _Server(ThreadingHTTPServer):
    request_queue_size = 64  # connections that may come at once
    scripted: ScriptedServer


class ScriptedServer:
    """Answers every GET, HEAD and POST by `script` as it then is."""

    def __init__(self, script: Script) -> None:
        self.script = script
        self._server = _Server(("127.0.0.1", 0), Request)
        self._server.scripted = self
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
