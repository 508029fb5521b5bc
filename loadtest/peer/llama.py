"""llama.cpp's `llama-server` as a child process, asked for greedy answers by token ids.

The binary and the GGUF files are the user's. A server lives for one run of one task. Its n-gram
kinds lose their knowledge of earlier answers with it, so no run knows the answers of the last.
Sources: tools/server/README.md and docs/speculative.md of github.com/ggml-org/llama.cpp.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import httpx

from loadtest.client.http import READ_TIMEOUT_S
from loadtest.peer.timed import Timed
from loadtest.service.served import ended_in_order, free_port

READY_TIMEOUT_S = 120.0
_STOP_TIMEOUT_S = 20.0
_PREFIX = "data: "
PLAIN = "plain"

# n-gram kinds, by what they are called in tables: the defaults of the server wait for 12 equal
# tokens and draft 48, which short answers seldom have, so shorter ones stand next to them.
LOOKUPS: Mapping[str, Sequence[str]] = {
    "ngram-simple 12/48": ("--spec-type", "ngram-simple"),
    **{
        f"ngram-simple {size}/{length}": (
            *("--spec-type", "ngram-simple"),
            *("--spec-ngram-simple-size-n", str(size)),
            *("--spec-ngram-simple-size-m", str(length)),
        )
        for size, length in ((2, 8), (3, 4), (3, 8), (3, 16))
    },
    **{
        f"ngram-map-k 3/{length}": (
            *("--spec-type", "ngram-map-k"),
            *("--spec-ngram-map-k-size-n", "3", "--spec-ngram-map-k-size-m", str(length)),
        )
        for length in (4, 8)
    },
    "ngram-map-k4v 3/8": (
        *("--spec-type", "ngram-map-k4v"),
        *("--spec-ngram-map-k4v-size-n", "3", "--spec-ngram-map-k4v-size-m", "8"),
    ),
    "ngram-mod 24": ("--spec-type", "ngram-mod"),
    "ngram-mod 4": (
        *("--spec-type", "ngram-mod", "--spec-ngram-mod-n-match", "4"),
        *("--spec-ngram-mod-n-min", "1", "--spec-ngram-mod-n-max", "16"),
    ),
    "ngram-cache": ("--spec-type", "ngram-cache"),
}


def draft_options(draft: Path, k: int) -> tuple[str, ...]:
    """Return the options with which a draft model drafts `k` tokens a round."""
    return (
        *("--spec-type", "draft-simple", "--spec-draft-model", str(draft)),
        *("--spec-draft-n-max", str(k), "--spec-draft-n-min", "0", "--spec-draft-p-min", "0"),
    )


@dataclass(frozen=True)
class LlamaCpp:
    """A llama.cpp server: the binary, the target and the options that every way shares."""

    binary: Path
    target: Path  # GGUF
    max_model_len: int

    def command(self, port: int, threads: int, options: Sequence[str]) -> list[str]:
        """Return the command line of a server with one place."""
        return [
            *(str(self.binary), "--model", str(self.target)),
            *("--host", "127.0.0.1", "--port", str(port), "--parallel", "1"),
            *("--ctx-size", str(self.max_model_len), "--cache-ram", "0"),
            *("--threads", str(threads), "--threads-batch", str(threads), *options),
        ]

    @contextlib.contextmanager
    def serving(self, threads: int, options: Sequence[str]) -> Iterator[LlamaClient]:
        """Run a server until the block ends; ready when the block begins.

        Raises:
            RuntimeError: it ended, or was not ready within READY_TIMEOUT_S; with the log's end.
        """
        port = free_port()
        with TemporaryDirectory(prefix="or-") as folder, ended_in_order():
            log_path = Path(folder) / "llama.log"
            with log_path.open("wb") as log:
                process = subprocess.Popen(
                    self.command(port, threads, options),
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,  # Ctrl-C comes to us, and we end it
                )
            base_url = f"http://127.0.0.1:{port}"
            try:
                with httpx.Client(base_url=base_url, timeout=READ_TIMEOUT_S) as client:
                    _wait_ready(client, process, log_path)
                    yield LlamaClient(client)
            finally:
                _end(process)


class LlamaClient:
    """Asks a running server, one prompt after another. Made by `LlamaCpp.serving`."""

    def __init__(self, client: httpx.Client) -> None:
        self._client = client

    def ask(self, prompt: Sequence[int], num_tokens: int) -> Timed:
        """Return one answer of at most `num_tokens`, timed by the server's own clock.

        Raises:
            RuntimeError: the server refused, or its answer has no timings.
        """
        answer = self._client.post("/completion", json=_body(prompt, num_tokens, stream=False))
        if answer.status_code != httpx.codes.OK:
            raise RuntimeError(f"llama-server: HTTP {answer.status_code}: {answer.text[:500]}")
        return timed_by_server(answer.json())

    def ask_streamed(self, prompt: Sequence[int], num_tokens: int) -> Timed:
        """Return one answer, streamed and timed by the client's clock.

        Raises:
            RuntimeError: the server refused, or the stream has no end.
        """
        began_s = time.perf_counter()
        body = _body(prompt, num_tokens, stream=True)
        with self._client.stream("POST", "/completion", json=body) as response:
            if response.status_code != httpx.codes.OK:
                content = response.read().decode(errors="replace")
                raise RuntimeError(f"llama-server: HTTP {response.status_code}: {content[:500]}")
            lines = ((line, time.perf_counter()) for line in response.iter_lines())
            return timed_by_client(lines, began_s)


def timed_by_server(content: Mapping[str, Any]) -> Timed:
    """Read a whole answer of `/completion`.

    The server counts its time of generation from the first token on, which it counts as well.

    Raises:
        RuntimeError: it has no timings.
    """
    timings = content.get("timings")
    if not timings or not timings.get("predicted_n"):
        raise RuntimeError(f"llama-server: an answer without timings: {str(content)[:500]}")
    decode_s = float(timings["predicted_ms"]) / 1e3
    return Timed(
        num_tokens=int(timings["predicted_n"]),
        num_decoded=int(timings["predicted_n"]) - 1,
        decode_s=decode_s,
        whole_s=decode_s + float(timings["prompt_ms"]) / 1e3,
        token_ids=tuple(content.get("tokens") or ()),
        num_drafted=int(timings.get("draft_n", 0)),
        num_accepted=int(timings.get("draft_n_accepted", 0)),
    )


def timed_by_client(lines: Iterable[tuple[str, float]], began_s: float) -> Timed:
    """Read a stream of `/completion`: its lines, each with the time at which it came.

    Raises:
        RuntimeError: an error came, no token, or no end.
    """
    token_ids: list[int] = []
    times_s: list[float] = []
    num_first = 0
    last: Mapping[str, Any] = {}
    for line, now_s in lines:
        if not line.startswith(_PREFIX):
            continue
        event = json.loads(line.removeprefix(_PREFIX))
        if event.get("tokens"):
            token_ids += event["tokens"]
            num_first = num_first or len(token_ids)
            times_s.append(now_s)
        last = event
    if not last.get("stop") or not times_s:
        raise RuntimeError(f"llama-server: a stream without an end: {str(last)[:500]}")
    told = timed_by_server(last)
    return Timed(
        num_tokens=told.num_tokens,
        num_decoded=told.num_tokens - num_first,
        decode_s=times_s[-1] - times_s[0],
        whole_s=times_s[-1] - began_s,
        token_ids=tuple(token_ids),
        num_drafted=told.num_drafted,
        num_accepted=told.num_accepted,
    )


def _body(prompt: Sequence[int], num_tokens: int, *, stream: bool) -> dict[str, Any]:
    return {
        "prompt": list(prompt),
        "n_predict": num_tokens,
        "temperature": 0.0,
        "samplers": ["top_k"],  # the least work: nothing but the best token is looked for
        "top_k": 1,
        "cache_prompt": False,
        "return_tokens": True,
        "stream": stream,
    }


def _wait_ready(client: httpx.Client, process: subprocess.Popen[bytes], log_path: Path) -> None:
    deadline = time.monotonic() + READY_TIMEOUT_S
    while time.monotonic() < deadline:
        if process.poll() is not None:
            break
        with contextlib.suppress(httpx.HTTPError):
            if client.get("/health").status_code == httpx.codes.OK:
                return
        time.sleep(0.05)
    log = log_path.read_text(errors="replace")
    raise RuntimeError(f"llama-server did not become ready:\n{log[-2000:]}")


def _end(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(_STOP_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait(_STOP_TIMEOUT_S)
