"""The ways in which proxies, gateways and odd clients send one and the same request.

Bodies are compressed, chunked and delayed; paths are spelt in other ways; headers are added and
renamed. Some must be refused: an encoding that is not accepted or that the header lies about. So
must a short body that is a long text. Pure: every request is a function of its generator.
"""

from __future__ import annotations

import gzip
import json
import random
import zlib
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from loadtest.fuzz.http.raw import Exchange

ORIGIN = "https://page.example"  # that is let in
_OTHER_ORIGIN = "https://other.example"
_BOMB_BYTES = 3_000_000
_PREFIXES = ("", "", "", "/", "/v1")
_PAGES = ("/v1/models", "/health", "/livez", "/readyz", "/version", "/metrics", "/openapi.json")


@dataclass(slots=True)
class Habit:
    """A request, and what may be expected of its answer."""

    exchange: Exchange
    status: int = 200
    is_stream: bool = False
    origin: str = ""
    closes: bool = False  # the client has asked for one answer on its connection
    names: list[str] = field(default_factory=list)  # for people
    is_plain: bool = True  # the same answer as the plain request; else only its status


def plain_request(path: str, body: dict[str, Any]) -> Habit:
    """Return the request of a client without a proxy."""
    data = json.dumps(body).encode()
    head = _head("POST", path, [("Content-Type", "application/json")], len(data))
    return Habit(Exchange([head + data]), is_stream=bool(body.get("stream")))


def random_habit(rng: random.Random, path: str, body: dict[str, Any]) -> Habit:
    """Return the request as a proxy might send it; at times another route's."""
    kind = rng.random()
    if kind < 0.1:
        return _preflight(rng, path)
    if kind < 0.2:
        return _page(rng)
    habit = Habit(Exchange([]), is_stream=bool(body.get("stream")))
    data, encoding = _encoded(rng, _spelt(rng, body), habit)
    headers = _headers(rng, habit)
    if encoding:
        headers.append(("Content-Encoding", encoding))
    rng.shuffle(headers)
    _frame(rng, habit, _target(rng, path), headers, data)
    return habit


def _spelt(rng: random.Random, body: dict[str, Any]) -> bytes:
    """Return the body's JSON in one of its spellings."""
    items = list(body.items())
    rng.shuffle(items)
    text = json.dumps(
        dict(items), ensure_ascii=rng.random() < 0.5, indent=rng.choice((None, None, 2))
    )
    mark = rng.choice(("", "", "", "\ufeff", "\r\n "))
    return (mark + text + rng.choice(("", "\n"))).encode()


def _raw_deflate(data: bytes) -> bytes:
    packer = zlib.compressobj(wbits=-zlib.MAX_WBITS)
    return packer.compress(data) + packer.flush()


def _in_parts(data: bytes) -> bytes:
    middle = len(data) // 2
    return gzip.compress(data[:middle]) + gzip.compress(data[middle:])


_PACKERS: tuple[tuple[str, Callable[[bytes], bytes]], ...] = (
    ("gzip", gzip.compress),
    ("x-gzip", gzip.compress),
    ("GZip", gzip.compress),
    ("gzip", _in_parts),
    ("deflate", zlib.compress),
    ("deflate", _raw_deflate),
    ("identity", bytes),
    ("identity, gzip", gzip.compress),
)


def _encoded(rng: random.Random, data: bytes, habit: Habit) -> tuple[bytes, str]:
    """Return the body as it is sent, and its Content-Encoding."""
    kind = rng.choices(("plain", "packed", "other", "lie", "cut", "bomb"), (6, 6, 1, 1, 1, 1))[0]
    habit.names.append(kind)
    if kind == "plain":
        return data, ""
    if kind == "packed":
        encoding, pack = rng.choice(_PACKERS)
        habit.names.append(f"{encoding} by {pack.__name__}")
        return pack(data), encoding
    if kind == "other":
        habit.status = 415
        return data, rng.choice(("br", "zstd", "compress", "gzip, br", "gzip, gzip", "x-unknown"))
    if kind == "lie":
        habit.status = 400
        return data, rng.choice(("gzip", "deflate"))
    if kind == "cut":
        habit.status = 400
        packed = gzip.compress(data)
        return packed[: rng.randrange(1, len(packed) - 1)], "gzip"
    habit.status = 413
    return gzip.compress(b" " * _BOMB_BYTES + data), "gzip"


def _headers(rng: random.Random, habit: Habit) -> list[tuple[str, str]]:
    kinds = (
        "application/json",
        "application/json; charset=utf-8",
        "Application/JSON;charset=UTF-8",
        "text/plain;charset=UTF-8",
        "application/x-www-form-urlencoded",
        "",
    )
    kind = rng.choice(kinds)
    headers = [("Content-Type", kind)] if kind else []
    headers += rng.sample(_OF_PROXIES, rng.randint(0, len(_OF_PROXIES)))
    if rng.random() < 0.4:
        habit.origin = rng.choice((ORIGIN, _OTHER_ORIGIN, "null"))
        headers.append(("Origin", habit.origin))
    return [(rng.choice((str, str.lower, str.upper))(name), value) for name, value in headers]


_OF_PROXIES = [
    ("Accept", "text/event-stream"),
    ("Accept-Encoding", "gzip, deflate, br, zstd"),
    ("Accept-Language", "de-DE,de;q=0.9"),
    ("Authorization", "Bearer none"),
    ("Cache-Control", "no-cache"),
    ("CF-Connecting-IP", "203.0.113.7"),
    ("Cookie", "a=b; c=d"),
    ("Forwarded", 'for="[2001:db8::1]:4711";proto=https;host=api.example;by=_hidden'),
    ("Prefer", "wait=60"),
    ("Priority", "u=1, i"),
    ("Sec-Fetch-Mode", "cors"),
    ("TE", "trailers"),
    ("Traceparent", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"),
    ("User-Agent", "OpenAI/Python 3.54"),
    ("Via", "1.0 varnish, 1.1 cache"),
    ("X-Amzn-Trace-Id", "Root=1-67891233-abcdef012345678912345678"),
    ("X-Forwarded-For", "203.0.113.7, 198.51.100.2, unknown"),
    ("X-Forwarded-Host", "api.example"),
    ("X-Forwarded-Prefix", "/llm"),
    ("X-Forwarded-Proto", "https"),
    ("X-Real-IP", "203.0.113.7"),
    ("X-Request-Id", "3f1c-77"),
    ("X-Stainless-Lang", "js"),
]


def _target(rng: random.Random, path: str) -> str:
    """Return the request's target: the path in another spelling, at times a whole URL."""
    spelt = rng.choice(
        (
            path,
            path,
            path + "/",
            "/" + path,
            path.replace("/", "//"),
            path.removeprefix("/v1"),
            "/v1" + path,
        )
    )
    spelt += rng.choice(("", "", "?api-version=2024-10-21", "?"))
    # Only one slash after the host: two would begin another path.
    return f"http://api.example{spelt}" if rng.random() < 0.1 else spelt


def _frame(
    rng: random.Random, habit: Habit, target: str, headers: list[tuple[str, str]], data: bytes
) -> None:
    """Put the request into pieces: its length said or chunked, at once or slowly."""
    exchange, framing = habit.exchange, rng.choice(("length", "length", "chunked", "1.0"))
    habit.names += [target, framing]
    version = "1.0" if framing == "1.0" else "1.1"
    if framing == "1.0" or rng.random() < 0.2:
        headers.append(("Connection", "close"))
        habit.closes = True
    if framing == "chunked":
        head = _head("POST", target, [*headers, ("Transfer-Encoding", "chunked")], None)
        body = _chunked(rng, data)
    else:
        head, body = _head("POST", target, headers, len(data), version), data
    if framing != "1.0" and rng.random() < 0.15:
        exchange.waits_for_continue = True
        head = head[:-2] + b"Expect: 100-continue\r\n\r\n"
        habit.names.append("expects 100")
    pieces = [body] if exchange.waits_for_continue else [head + body]
    if rng.random() < 0.4:
        [whole] = pieces
        cuts = sorted(rng.randrange(1, len(whole)) for _ in range(rng.randint(1, 6)))
        pieces = [whole[a:b] for a, b in zip([0, *cuts], [*cuts, len(whole)], strict=True)]
        exchange.pause_s = rng.choice((0.0, 0.001, 0.01))
    exchange.pieces = [head, *pieces] if exchange.waits_for_continue else pieces
    if rng.random() < 0.3:
        exchange.read_bytes = rng.choice((1, 7, 100))
        exchange.read_pause_s = rng.choice((0.0, 0.0, 0.0001))


def _head(
    method: str,
    target: str,
    headers: list[tuple[str, str]],
    num_bytes: int | None,
    version: str = "1.1",
) -> bytes:
    lines = [f"{method} {target} HTTP/{version}", "Host: api.example"]
    lines += [f"{name}: {value}" for name, value in headers]
    if num_bytes is not None:
        lines.append(f"Content-Length: {num_bytes}")
    return "\r\n".join([*lines, "", ""]).encode()


def _chunked(rng: random.Random, data: bytes) -> bytes:
    body, at = b"", 0
    extension = rng.choice((b"", b"", b";a=b"))
    while at < len(data):
        part = data[at : at + rng.choice((1, 16, 1000, 60_000))]
        body += b"%x%s\r\n%s\r\n" % (len(part), extension, part)
        at += len(part)
    return body + b"0\r\n\r\n"


def _preflight(rng: random.Random, path: str) -> Habit:
    origin = rng.choice((ORIGIN, _OTHER_ORIGIN))
    headers = [
        ("Origin", origin),
        ("Access-Control-Request-Method", "POST"),
        ("Access-Control-Request-Headers", "authorization,content-type,x-stainless-os"),
    ]
    if rng.random() < 0.3:
        headers.append(("Access-Control-Request-Private-Network", "true"))
    head = _head("OPTIONS", _target(rng, path), headers, 0)
    status = 200 if origin == ORIGIN else 400
    return Habit(Exchange([head]), status, origin=origin, names=["preflight"], is_plain=False)


def _page(rng: random.Random) -> Habit:
    method = rng.choice(("GET", "HEAD"))
    target = rng.choice(_PREFIXES[:4]) + rng.choice(_PAGES) + rng.choice(("", "/"))
    exchange = Exchange([_head(method, target, [], None)], is_head=method == "HEAD")
    return Habit(exchange, names=[method, target], is_plain=False)
