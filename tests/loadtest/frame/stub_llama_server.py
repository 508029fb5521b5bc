"""Stands in for llama-server in tests: its /health and /completion as far as a client sees them.

Answers the token after the last of the prompt, and so on. `--spec-type refuse` answers 400.
"""

from __future__ import annotations

import json
import sys
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any


def option(name: str) -> str:
    """The word after an option of the command line; "" where it is not given."""
    words = sys.argv[1:]
    return words[words.index(name) + 1] if name in words else ""


def timings(num_tokens: int) -> dict[str, Any]:
    """Ten milliseconds for the prompt, and two for each token after the first."""
    values = {"predicted_n": num_tokens, "predicted_ms": 2.0 * (num_tokens - 1), "prompt_ms": 10.0}
    return values | ({"draft_n": 4, "draft_n_accepted": 3} if option("--spec-type") else {})


class Handler(BaseHTTPRequestHandler):
    """One request at a time."""

    def do_GET(self) -> None:
        self._send(b'{"status": "ok"}')

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        if option("--spec-type") == "refuse":
            self._send(b'{"error": "no such kind"}', 400)
            return
        tokens = [body["prompt"][-1] + 1 + place for place in range(body["n_predict"])]
        self._send(json.dumps({"tokens": tokens, "timings": timings(len(tokens))}).encode())

    def log_message(self, format: str, *args: object) -> None:
        """Nothing."""

    def _send(self, content: bytes, status: int = 200) -> None:
        self.send_response(status)
        self.send_header("content-length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)


if __name__ == "__main__":
    HTTPServer(("127.0.0.1", int(option("--port"))), Handler).serve_forever()
