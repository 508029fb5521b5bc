"""nginx in front of a server, as its package sets it up: no directive of ours but `proxy_pass`.

Its defaults cut streams elsewhere. It gives up an upstream that is silent for 60 s, and gathers
answers before it passes them on. It speaks HTTP/1.0 to the upstream.
"""

from __future__ import annotations

import contextlib
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

from loadtest.clients.processes import path_of
from loadtest.service.served import free_port

_START_TIMEOUT_S = 20.0
_STOP_TIMEOUT_S = 10.0
_TEMPORARY = ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
_CONFIG = """
daemon off;
worker_processes 1;
pid {folder}/nginx.pid;
error_log {folder}/error.log;
events {{}}
http {{
    access_log off;
    {temporary}
    server {{
        listen 127.0.0.1:{port};
        location / {{ proxy_pass {upstream}; {directives} }}
    }}
}}
"""


def nginx_version() -> str:
    """Return nginx's version.

    Raises:
        NotHere: it is not installed.
    """
    said = subprocess.run([path_of("nginx"), "-v"], capture_output=True, text=True, check=True)
    return said.stderr.strip().rsplit("/", 1)[-1]


@contextlib.contextmanager
def nginx_before(url: str, folder: Path, directives: str = "") -> Iterator[str]:
    """Put nginx in front of the server at `url` until the block ends; its own URL.

    Args:
        url: of the server, a path included where it has one.
        folder: an empty one for nginx's files.
        directives: of its location, beside `proxy_pass`.

    Raises:
        NotHere: it is not installed.
        RuntimeError: it does not listen; with its log.
    """
    program, port = path_of("nginx"), free_port()
    parts = urlsplit(url)
    config = folder / "nginx.conf"
    temporary = " ".join(f"{name}_temp_path {folder}/{name};" for name in _TEMPORARY)
    upstream = f"{parts.scheme}://{parts.netloc}"
    config.write_text(
        _CONFIG.format(
            folder=folder,
            temporary=temporary,
            port=port,
            upstream=upstream,
            directives=directives,
        ),
        encoding="utf-8",
    )
    command = [program, "-p", str(folder), "-c", str(config), "-e", str(folder / "error.log")]
    with (folder / "output.log").open("wb") as output:
        process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT)
    try:
        _wait_listening(process, port, folder)
        yield f"http://127.0.0.1:{port}{parts.path}"
    finally:
        process.terminate()
        process.wait(_STOP_TIMEOUT_S)


def _wait_listening(process: subprocess.Popen[bytes], port: int, folder: Path) -> None:
    end = time.monotonic() + _START_TIMEOUT_S
    while time.monotonic() < end and process.poll() is None:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1.0):
            return
        time.sleep(0.05)
    logs = [folder / name for name in ("output.log", "error.log")]
    said = " ".join(log.read_text(errors="replace") for log in logs if log.exists())
    raise RuntimeError(f"nginx does not listen: {said[-500:]}")
