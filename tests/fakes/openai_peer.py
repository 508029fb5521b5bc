"""A small OpenAI server that writes seeded words, and can be wrong in the ways that peers are."""

from __future__ import annotations

import json
import math
import random
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from tests.fakes.scripted_server import Request, answer, scripted_server

WORDS = ("ant", "bee", "cat", "dog", "eel", "fox", "gnu", "hen")
OTHER_WORD = " owl"  # that no answer has unless it is put there
_LIKELIER = 0.5  # by so much the log probability of what is written exceeds OTHER_WORD's


@dataclass
class Peer:
    """What the server does; may be changed while it runs.

    `wrong_at` puts another word there where a prompt has `wrong_word`. `drops_seed` draws anew for
    each request. `num_broken` streams break in the middle, `num_refused` requests get 429 first.
    """

    wrong_at: int | None = None
    wrong_word: str = ""
    drops_seed: bool = False
    num_broken: int = 0
    num_refused: int = 0
    finish_reason: str = "length"
    has_logprobs: bool = True
    has_tokenize: bool = False
    api_key: str = ""
    refusal: str = ""  # of every request for text
    requests: list[dict[str, Any]] = field(default_factory=list)
    url: str = ""

    def __post_init__(self) -> None:
        self._lock = threading.Lock()
        self._num_drawn = 0

    def words(self, body: dict[str, Any]) -> list[str]:
        """The tokens of the answer to a request."""
        prompt = json.dumps(body.get("messages") or body["prompt"])
        with self._lock:
            self._num_drawn += 1
            seed = self._num_drawn if self.drops_seed else body.get("seed")
        chance = random.Random(f"{prompt} {seed}" if body["temperature"] > 0 else prompt)
        words = [f" {chance.choice(WORDS)}" for _ in range(body["max_tokens"])]
        if self.wrong_at is not None and self.wrong_word in prompt:
            words[self.wrong_at] = OTHER_WORD
        return words

    def takes(self, counter: str) -> bool:
        """Whether one of these is left to be done; it is then done."""
        with self._lock:
            num_left = int(getattr(self, counter))
            setattr(self, counter, max(0, num_left - 1))
        return num_left > 0


def _chat_logprobs(word: str) -> dict[str, Any]:
    likeliest = [{"token": word, "logprob": 0.0}, {"token": OTHER_WORD, "logprob": -_LIKELIER}]
    return {"content": [{"token": word, "logprob": 0.0, "top_logprobs": likeliest}]}


def _text_logprobs(word: str) -> dict[str, Any]:
    top = {word: 0.0, OTHER_WORD: -_LIKELIER}
    return {"tokens": [word], "token_logprobs": [0.0], "top_logprobs": [top]}


def _joined(blocks: list[dict[str, Any]]) -> dict[str, Any]:
    return {key: [one for block in blocks for one in block[key]] for key in blocks[0]}


class _Exchange:
    """One request and its answer."""

    def __init__(self, peer: Peer, request: Request) -> None:
        self._peer = peer
        self._request = request
        self._path = request.path

    def answer(self) -> None:
        if not self._is_known():
            self._send({"error": {"message": "no such key"}}, status=401)
        elif self._request.command == "GET":
            self._send({"data": [{"id": "words"}]})
        elif self._path == "/tokenize":
            self._tokenize(json.loads(self._request.body))
        else:
            self._write(json.loads(self._request.body))

    def _write(self, body: dict[str, Any]) -> None:
        self._peer.requests.append({"path": self._path, **body})
        if self._peer.refusal:
            self._send({"error": {"message": self._peer.refusal}}, status=400)
        elif self._peer.takes("num_refused"):
            self._send({"error": {"message": "busy"}}, status=429)
        else:
            self._text(body)

    def _text(self, body: dict[str, Any]) -> None:
        is_chat = self._path == "/v1/chat/completions"
        logprobs_of = _chat_logprobs if is_chat else _text_logprobs
        words = self._peer.words(body)
        blocks = [logprobs_of(word) for word in words]
        wants_logprobs = self._peer.has_logprobs and body.get("logprobs") is not None
        if body["stream"]:
            self._stream(words, blocks if wants_logprobs else [], is_chat)
            return
        text = "".join(words)
        choice: dict[str, Any] = {"message": {"content": text}} if is_chat else {"text": text}
        choice["finish_reason"] = self._peer.finish_reason
        choice["logprobs"] = _joined(blocks) if wants_logprobs else None
        self._send({"choices": [choice], "usage": {"completion_tokens": len(words)}})

    def _stream(self, words: list[str], blocks: list[dict[str, Any]], is_chat: bool) -> None:
        self._request.send_response(200)
        self._request.send_header("content-type", "text/event-stream")
        self._request.end_headers()
        num_sent = len(words) // 2 if self._peer.takes("num_broken") else math.inf
        for index, word in enumerate(words):
            if index >= num_sent:
                return
            choice: dict[str, Any] = {"delta": {"content": word}} if is_chat else {"text": word}
            choice["logprobs"] = blocks[index] if blocks else None
            is_last = index == len(words) - 1
            choice["finish_reason"] = self._peer.finish_reason if is_last else None
            self._event(json.dumps({"choices": [choice]}))
        self._event("[DONE]")

    def _tokenize(self, body: dict[str, Any]) -> None:
        if not self._peer.has_tokenize:
            self._send({"detail": "Not Found"}, status=404)
        else:
            self._send({"tokens": [hash(word) for word in body["prompt"].split(" ")[1:]]})

    def _is_known(self) -> bool:
        shown = self._request.headers.get("authorization", "")
        return not self._peer.api_key or shown == f"Bearer {self._peer.api_key}"

    def _event(self, data: str) -> None:
        self._request.wfile.write(f"data: {data}\n\n".encode())

    def _send(self, content: dict[str, Any], status: int = 200) -> None:
        headers = {"content-type": "application/json"}
        answer(json.dumps(content).encode(), status, headers=headers)(self._request)


@contextmanager
def served_peer(peer: Peer) -> Iterator[Peer]:
    """Serve on a free loopback port until the block ends."""
    with scripted_server(lambda request: _Exchange(peer, request).answer()) as server:
        peer.url = server.url
        yield peer
