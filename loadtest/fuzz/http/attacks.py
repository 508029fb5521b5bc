"""Random HTTP requests: valid ones, and valid ones with something wrong.

A body is mutated as an object (values of wrong type or size, missing, unknown and doubled fields).
It is mutated as JSON text (nesting, NaN, surrogates) and as bytes (encodings, truncation, bits).
Headers lie about its length and its type. `blamed` names the top-level field that a refusal must be
about, where only one was touched.
"""

from __future__ import annotations

import json
import random
from dataclasses import dataclass, field
from typing import Any

from loadtest.fuzz.http.bodies import FIELDS, MODEL, PATHS, valid_body

_DEEP = 3000  # levels
_LONG = 20_000  # items

Headers = list[tuple[bytes, bytes]]


@dataclass(slots=True)
class Attack:
    """One HTTP request, and what may be expected of its answer."""

    method: str
    path: str
    headers: Headers
    chunks: list[bytes]
    is_valid: bool = False  # must be answered with 200
    blamed: str = ""  # the field that a 400 must name
    body: dict[str, Any] = field(default_factory=dict)  # as it was while it was valid
    leaves_after_s: float | None = None  # the client goes away


def random_attack(rng: random.Random) -> Attack:
    """Return an attack of any kind."""
    if rng.random() < 0.08:
        return _other_route(rng)
    path = rng.choice(PATHS)
    body = valid_body(rng, path)
    attack = Attack("POST", path, _plain_headers(), [], body=body)
    kind = rng.choices(("valid", "object", "text", "bytes", "headers"), (2, 6, 2, 2, 1))[0]
    content = json.loads(json.dumps(body))
    if kind == "object":
        num_mutations = rng.choice((1, 1, 1, 2, 4))
        touched = {_mutate_object(rng, content) for _ in range(num_mutations)}
        if len(touched) == 1:
            [attack.blamed] = touched
    text = json.dumps(content)
    if kind == "text":
        text = rng.choice(_TEXT_MUTATIONS)(rng, text)
    data = text.encode()
    if kind == "bytes":
        data = rng.choice(_BYTE_MUTATIONS)(rng, data)
    if kind == "headers":
        _mutate_headers(rng, attack, data)
    attack.is_valid = kind == "valid"
    attack.chunks = _chunked(rng, data)
    if rng.random() < 0.08:
        attack.leaves_after_s = rng.uniform(0.0, 0.3)
    return attack


# --- an object with something wrong


def _strange_value(rng: random.Random) -> Any:
    """Return a value that few fields expect."""
    return rng.choice(
        (
            None,
            True,
            "",
            "text",
            "\ud800",
            "\ue000" * 9,
            -1,
            0,
            1.5,
            10**400,
            -(10**400),
            2**63,
            2**64,
            1e308,
            [],
            {},
            [[]],
            [1, "a", None],
            {"a": {"b": [1]}},
            ["x"] * 2000,
            list(range(300)),
            "a" * 5000,
            {str(i): 0 for i in range(400)},
            {"0": 10**400},
            {"-1": 1},
        )
    )


def _mutate_object(rng: random.Random, body: dict[str, Any]) -> str:
    """Change one thing; the top-level field it is in."""
    if rng.random() < 0.15:
        name = rng.choice(("tempperature", "", "model ", "\ud83d", "a" * 300, "functions"))
        body[name] = _strange_value(rng)
        return name
    name = rng.choice([*body, *FIELDS])
    if rng.random() < 0.1 and name in body:
        del body[name]
        return name
    value = body.get(name)
    if isinstance(value, dict | list) and value and rng.random() < 0.6:
        _mutate_within(rng, value)
    else:
        body[name] = _strange_value(rng)
    return name


def _mutate_within(rng: random.Random, value: dict[str, Any] | list[Any]) -> None:
    keys: list[Any] = list(value) if isinstance(value, dict) else list(range(len(value)))
    key = rng.choice(keys)
    inner = value[key]
    if isinstance(inner, dict | list) and inner and rng.random() < 0.7:
        _mutate_within(rng, inner)
    elif isinstance(value, dict) and rng.random() < 0.3:
        value[rng.choice(("unknown", "type", "$ref", "pattern", "not"))] = _strange_value(rng)
    else:
        value[key] = _strange_value(rng)


# --- JSON text and bytes with something wrong


def _nested(rng: random.Random, text: str) -> str:
    opening, closing = rng.choice((("[", "]"), ('{"a":', "}")))
    deep = opening * _DEEP + "1" + closing * _DEEP
    return text[:-1] + f', "{rng.choice(("stop", "x", "messages", "prompt"))}": {deep}}}'


def _doubled_key(rng: random.Random, text: str) -> str:
    return text[:-1] + f', "{rng.choice(("model", "max_tokens", "stream"))}": "again"}}'


def _no_number(rng: random.Random, text: str) -> str:
    number = rng.choice(("NaN", "Infinity", "-Infinity", "1e999", "-0", "01", "1" * 5000, "0x1"))
    return text[:-1] + f', "temperature": {number}}}'


def _long_list(rng: random.Random, text: str) -> str:
    name, item = rng.choice(
        (("prompt", "1"), ("stop", '"a"'), ("messages", "{}"), ("bad_words", '"b"'), ("user", "0"))
    )
    return text[:-1] + f', "{name}": [{",".join([item] * _LONG)}]}}'


def _surrogates(rng: random.Random, text: str) -> str:
    lone = rng.choice(('"\\ud800"', '"\\udfff\\ud800"', '"a\\uDBFFb"', '"\\ud83d\\ude00"'))
    return text[:-1] + f', "{rng.choice(("user", "stop", "cache_salt", "prompt"))}": {lone}}}'


def _whitespace(rng: random.Random, text: str) -> str:
    return rng.choice((" " * 9000, "\ufeff", "\n\t", "//c\n")) + text


def _no_object(rng: random.Random, text: str) -> str:
    return rng.choice(("", "null", "[]", '"a"', "1", f"[{text}]", text + text, "{", "}"))


_TEXT_MUTATIONS = (
    _nested,
    _doubled_key,
    _no_number,
    _long_list,
    _surrogates,
    _whitespace,
    _no_object,
)


def _truncated(rng: random.Random, data: bytes) -> bytes:
    return data[: rng.randrange(len(data) + 1)]


def _reencoded(rng: random.Random, data: bytes) -> bytes:
    return data.decode().encode(rng.choice(("utf-16", "utf-32", "utf-16-le", "utf-7", "utf-8-sig")))


def _flipped(rng: random.Random, data: bytes) -> bytes:
    changed = bytearray(data)
    for _ in range(rng.randint(1, 8)):
        changed[rng.randrange(len(changed))] = rng.randrange(256)
    return bytes(changed)


def _inserted(rng: random.Random, data: bytes) -> bytes:
    at = rng.randrange(len(data))
    return data[:at] + rng.choice((b"\xff\xfe", b"\0", b"\xed\xa0\x80", b"\xc3")) + data[at:]


def _noise(rng: random.Random, data: bytes) -> bytes:
    return rng.randbytes(rng.randint(0, 2000))


def _too_long(rng: random.Random, data: bytes) -> bytes:
    return data[:-1] + b" " * 400_000 + b"}"


_BYTE_MUTATIONS = (_truncated, _reencoded, _flipped, _inserted, _noise, _too_long)

# --- headers and routes


def _plain_headers() -> Headers:
    return [(b"host", b"localhost"), (b"content-type", b"application/json")]


def _mutate_headers(rng: random.Random, attack: Attack, data: bytes) -> None:
    lie = rng.choice((0, 1, len(data) - 1, len(data) + 50, 10**30, -5))
    attack.headers = rng.choice(
        (
            [*attack.headers, (b"content-length", str(lie).encode())],
            [*attack.headers, (b"content-length", "²".encode("latin-1"))],
            [*attack.headers, (b"content-length", b"12, 12")],
            [(b"content-type", b"text/plain; charset=utf-16")],
            [(b"content-type", b"\xff\xfe")],
            [],
            [*attack.headers, (b"content-encoding", b"gzip")],
            [*attack.headers, (b"x-request-id", rng.randbytes(40))],
            [*attack.headers, (b"x-request-id", b"a" * 5000)],
            [*attack.headers, (b"authorization", b"Bearer \xff\xff")],
            attack.headers * 50,
        )
    )


def _other_route(rng: random.Random) -> Attack:
    path = rng.choice(
        (
            "/v1/models",
            f"/v1/models/{MODEL}",
            "/v1/models/%2e%2e/x",
            "/v1/models/" + "a" * 3000,
            "/health",
            "/livez",
            "/readyz",
            "/metrics",
            "/version",
            "/openapi.json",
            "/v1/embeddings",
            "/v1//chat/completions",
            "/\u0000",
            "//",
            "",
        )
    )
    method = rng.choice(("GET", "GET", "POST", "PUT", "DELETE", "OPTIONS", "HEAD", "FOO"))
    return Attack(method, path, _plain_headers(), [rng.randbytes(rng.randint(0, 30))])


def _chunked(rng: random.Random, data: bytes) -> list[bytes]:
    if rng.random() < 0.7 or len(data) < 2:
        return [data]
    at = rng.randrange(1, len(data))
    return [data[:at], b"", data[at:]]
