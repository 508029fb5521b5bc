"""Requests of unkind clients, and the clients. Every body is a function of its number.

Bodies cost much to read, answers cost much to write, schemas cost much to compile. Each attack says
if it may be served. Others must be refused by a sentence that names the field, the limit and the
value (`refusal_complaint`).
"""

from __future__ import annotations

import asyncio
import itertools
import json
import re
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import httpx

from loadtest.client.cases import closed_object
from loadtest.client.http import open_client
from loadtest.client.thread import LoadThread

_CHAT = "/v1/chat/completions"
_TEXT = "/v1/completions"
_LONG_PROMPT_TOKENS = 32_768
_NUM_HOSTILE_SCHEMAS = 100
_NUM_ORDINARY_FIELDS = 480
_REFUSED = (400, 413, 429)
TIMEOUT_S = 120.0
JSON = {"content-type": "application/json"}
_MAX_COMPLAINTS = 20
_NUMBER = re.compile(r"\d[\d,.]*")


@dataclass(frozen=True)
class Attack:
    """One request.

    Attributes:
        name: of its kind.
        path: where it is sent.
        body: its bytes.
        may_be_served: a 200 is as good as a refusal.
    """

    name: str
    path: str
    body: bytes
    may_be_served: bool = False


@dataclass(frozen=True)
class Wave:
    """Attacks that are sent one after the other, by some clients together."""

    at_once: int
    attacks: Sequence[Attack]


class Attackers:
    """Clients that send attacks, all waves at a time, between `start` and `stop`.

    Args:
        base_url: of the service.
        waves: what they send.
        relentless: begin again when all are answered; else each is sent once.
        api_key: see `open_client`.
    """

    def __init__(
        self,
        base_url: str,
        waves: Sequence[Wave],
        *,
        relentless: bool = False,
        api_key: str = "",
    ) -> None:
        self._base_url = base_url
        self._api_key = api_key
        self._waves = waves
        self._relentless = relentless
        self._thread = LoadThread("attackers", self._run, end_limit_s=TIMEOUT_S + 30)
        self.answers: Counter[str] = Counter()  # "name: status" -> how many
        self.longest_s: dict[str, float] = {}  # the longest answer of each name
        self.complaints: list[str] = []

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def stop(self) -> None:
        """Let what was sent be answered; see `LoadThread.stop`."""
        self._thread.stop()

    async def _run(self) -> None:
        async with open_client(
            self._base_url, api_key=self._api_key, timeout_s=TIMEOUT_S
        ) as client:
            clients = []
            for wave in self._waves:
                # Shared: its clients send different ones.
                attacks = itertools.cycle(wave.attacks) if self._relentless else iter(wave.attacks)
                clients += [self._repeat(client, attacks) for _ in range(wave.at_once)]
            await asyncio.gather(*clients)

    async def _repeat(self, client: httpx.AsyncClient, attacks: Iterator[Attack]) -> None:
        for attack in attacks:
            if self._relentless and self._thread.is_stopping:
                return
            await self._send(client, attack)

    async def _send(self, client: httpx.AsyncClient, attack: Attack) -> None:
        """Send one attack and check what comes back."""
        began_s = time.monotonic()
        try:
            answer = await client.post(attack.path, content=attack.body, headers=JSON)
            status, content = answer.status_code, answer.text
        except httpx.HTTPError as error:
            status, content = 0, f"{type(error).__name__}: {error}"
        took_s = time.monotonic() - began_s
        self.answers[f"{attack.name}: {status}"] += 1
        self.longest_s[attack.name] = max(self.longest_s.get(attack.name, 0.0), took_s)
        complaint = refusal_complaint(attack, status, content)
        if complaint and len(self.complaints) < _MAX_COMPLAINTS:
            self.complaints.append(complaint)


def large_bodies(model: str, num_bytes: int) -> list[Attack]:
    """Five different bodies of just under `num_bytes`: none fits a context of 32k tokens."""
    room = num_bytes - 512
    chat: dict[str, Any] = {"model": model, "max_tokens": 1}
    words = "the quick brown fox " * (room // 20)
    ids = [17] * (room // 3)
    tiny = [{"role": "user", "content": ""}]
    marks = "".join(map(chr, range(0xF0000, 0xFFFFE)))  # every one, 4 bytes each
    beside_marks = tiny * ((room - 4 * len(marks)) // 40)
    special = "<|" * (room // 2)
    return [
        _attack("1 MB of text", _TEXT, {**chat, "prompt": words}),
        _attack("1 MB of token ids", _TEXT, {**chat, "prompt": ids}, separators=(",", ":")),
        _attack(
            "1 MB of private-use characters",
            _CHAT,
            {**chat, "messages": [*beside_marks, _user(marks)]},
        ),
        _attack("1 MB of empty messages", _CHAT, {**chat, "messages": tiny * (room // 36)}),
        _attack("1 MB of half special tokens", _CHAT, {**chat, "messages": [_user(special)]}),
    ]


def long_answers(model: str, numbers: Iterable[int], max_tokens: int) -> list[Attack]:
    """Return a request for a long answer for each number, whole: it costs its reader little."""
    body: dict[str, Any] = {"model": model, "max_tokens": max_tokens, "ignore_eos": True}
    return [
        _attack(
            "a long answer",
            _CHAT,
            {**body, "seed": seed, "messages": [_user(f"Write a long story, number {seed}.")]},
            served=True,
        )
        for seed in numbers
    ]


def logprob_requests(model: str) -> list[Attack]:
    """Return requests with as many logprobs as possible, for a prompt beyond the context."""
    prompt = [17] * _LONG_PROMPT_TOKENS
    return [_attack("32k tokens of logprobs, n=8", _TEXT, {**_logprobs(model), "prompt": prompt})]


def fitting_logprob_requests(model: str, max_model_len: int) -> list[Attack]:
    """Return the same for a prompt that just fits: a real prefill, and a large answer."""
    body = {**_logprobs(model), "prompt": [17] * (max_model_len - 1)}
    return [_attack("a full context of logprobs, n=8", _TEXT, body, served=True)]


def hostile_schemas(model: str) -> list[Attack]:
    """Return a hundred different schemas of a few hundred bytes, slow or large to compile."""
    makers = (_steps, _long_arrays, _nested_repeats, _wide_pattern)
    attacks = []
    for number in range(_NUM_HOSTILE_SCHEMAS):
        make = makers[number % len(makers)]
        attacks.append(_constrained(model, f"schema: {make.__name__[1:]}", make(number)))
    return attacks


def ordinary_schema(model: str) -> Attack:
    """Return a schema of some 47 KB, as for a large tool.

    It must be served after any others.
    """
    kinds: Sequence[dict[str, Any]] = (
        {"type": "string", "maxLength": 40, "description": "a short text"},
        {"type": "integer", "minimum": 0, "maximum": 100_000},
        {"type": "boolean", "description": "yes or no"},
        {"enum": ["red", "green", "blue", None]},
    )
    fields = {
        f"ordinary_field_{i:03}": dict(kinds[i % len(kinds)]) for i in range(_NUM_ORDINARY_FIELDS)
    }
    return _constrained(model, "ordinary schema", closed_object(**fields))


def refusal_complaint(attack: Attack, status: int, content: str) -> str:
    """Return the fault of the answer to an attack; "" if there is none."""
    if status == 200:
        return "" if attack.may_be_served else f"{attack.name}: served"
    if status not in _REFUSED:
        return f"{attack.name}: status {status}: {content[:300]}"
    try:
        error = json.loads(content)["error"]
        message, param = str(error["message"]), error["param"]
    except (ValueError, KeyError, TypeError):
        return f"{attack.name}: status {status} without an error: {content[:300]}"
    if status == 429:  # full: the limit and when to come back, no field of the request's
        return ""
    if not param and status != 413:
        return f"{attack.name}: the refusal names no field: {message[:300]}"
    if len(_NUMBER.findall(message)) < 2:
        return f"{attack.name}: the refusal names not both limit and value: {message[:300]}"
    return ""


# --- schemas --------------------------------------------------------------------------------------


def _steps(number: int) -> dict[str, Any]:
    """Distinct `multipleOf`: an automaton of as many states each."""
    return closed_object(
        **{f"v{i}": {"type": "integer", "multipleOf": 9_000 - 41 * number - i} for i in range(6)}
    )


def _long_arrays(number: int) -> dict[str, Any]:
    return closed_object(
        **{
            f"a{i}": {"type": "array", "items": {"type": "integer"}, "maxItems": 900 + number + i}
            for i in range(6)
        }
    )


def _nested_repeats(number: int) -> dict[str, Any]:
    pattern = f"^((a{{1,{30 + number % 20}}}b){{1,40}}c){{1,{40 + number}}}$"
    return closed_object(text={"type": "string", "pattern": pattern})


def _wide_pattern(number: int) -> dict[str, Any]:
    pattern = f"^(.*x.{{{40 + number}}}y|[^q]*z.{{{30 + number}}})$"
    return closed_object(text={"type": "string", "pattern": pattern})


def _constrained(model: str, name: str, schema: dict[str, Any]) -> Attack:
    body = {
        "model": model,
        "messages": [_user("Answer in JSON.")],
        "max_tokens": 1,
        "response_format": {
            "type": "json_schema",
            "json_schema": {"name": "hostile", "schema": schema},
        },
    }
    return _attack(name, _CHAT, body, served=True)


def _logprobs(model: str) -> dict[str, Any]:
    return {"model": model, "max_tokens": 1, "prompt_logprobs": 20, "logprobs": 20, "n": 8}


def _user(content: str) -> dict[str, str]:
    return {"role": "user", "content": content}


def _attack(
    name: str,
    path: str,
    body: dict[str, Any],
    *,
    served: bool = False,
    separators: tuple[str, str] = (", ", ": "),
) -> Attack:
    # Unescaped: what counts is how many characters fit into the limit on bytes.
    text = json.dumps(body, ensure_ascii=False, separators=separators)
    return Attack(name, path, text.encode(), served)
