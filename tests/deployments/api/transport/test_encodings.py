"""Compressed bodies: taken, refused by name, and never longer than the limit once undone."""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import AsyncIterator, Callable

import httpx
import pytest

from tests.fakes.http import ScriptedGenerator
from tests.harness.http_clients import client_of

PATH = "/v1/chat/completions"
BODY = json.dumps(
    {"model": "tiny", "messages": [{"role": "user", "content": "hi"}], "seed": 3}
).encode()
LIMIT_BYTES = 4000


def raw_deflate(body: bytes) -> bytes:
    packer = zlib.compressobj(wbits=-zlib.MAX_WBITS)
    return packer.compress(body) + packer.flush()


def in_parts(body: bytes) -> bytes:
    return gzip.compress(body[:7]) + gzip.compress(body[7:])


async def post(
    content: bytes | AsyncIterator[bytes], encoding: str, generator: ScriptedGenerator | None = None
) -> httpx.Response:
    generator = generator or ScriptedGenerator()
    async with client_of(generator, body_limit_bytes=LIMIT_BYTES) as client:
        return await client.post(PATH, content=content, headers={"content-encoding": encoding})


@pytest.mark.parametrize(
    ("encoding", "pack"),
    [
        ("gzip", gzip.compress),
        ("GZIP", gzip.compress),
        ("x-gzip", gzip.compress),
        ("gzip", in_parts),
        ("deflate", zlib.compress),
        ("deflate", raw_deflate),
        ("identity", bytes),
        ("identity, gzip", gzip.compress),
        ("", bytes),
    ],
)
@pytest.mark.parametrize("step", [1, 3, 10_000])
async def test_a_body_is_taken_as_it_would_be_plain(encoding, pack: Callable, step):
    packed, generator = pack(BODY), ScriptedGenerator()

    async def chunks() -> AsyncIterator[bytes]:
        for at in range(0, len(packed), step):
            yield packed[at : at + step]

    answer = await post(chunks(), encoding, generator)
    assert answer.status_code == 200
    assert answer.json()["seed"] == 3


@pytest.mark.parametrize("encoding", ["br", "zstd", "compress", "gzip, gzip", "aes128gcm"])
async def test_another_encoding_is_refused_by_name(encoding):
    answer = await post(b"\x28\xb5\x2f\xfd", encoding)
    assert answer.status_code == 415
    error = answer.json()["error"]
    assert error["code"] == "unsupported_encoding"
    assert encoding in error["message"]
    assert "gzip, deflate" in error["message"]
    assert answer.headers["accept-encoding"] == "gzip, deflate"


@pytest.mark.parametrize("pack", [gzip.compress, in_parts, zlib.compress, raw_deflate])
@pytest.mark.parametrize("num_bytes", [LIMIT_BYTES + 1, 50_000_000])
async def test_a_bomb_is_given_up_at_the_limit(pack: Callable, num_bytes):
    packed = pack(b" " * num_bytes)[: LIMIT_BYTES - 1]
    encoding = "gzip" if packed[:2] == b"\x1f\x8b" else "deflate"
    answer = await post(packed, encoding)
    assert answer.status_code == 413
    assert f"limit of {LIMIT_BYTES} bytes" in answer.json()["error"]["message"]


async def test_the_packed_body_has_the_limit_too():
    empty_parts = gzip.compress(b"") * 1000
    assert (await post(empty_parts, "gzip")).status_code == 413


@pytest.mark.parametrize("encoding", ["gzip", "deflate"])
@pytest.mark.parametrize(
    "damage",
    [
        lambda packed: BODY,
        lambda packed: packed[:-4],
        lambda packed: packed[:1],
        lambda packed: packed + b"more",
        lambda packed: packed[:12] + bytes([packed[12] ^ 0xFF]) + packed[13:],
    ],
    ids=["plain", "cut", "one-byte", "more", "flipped"],
)
async def test_what_is_not_encoded_so_is_refused_by_the_header(encoding, damage: Callable):
    packed = gzip.compress(BODY) if encoding == "gzip" else zlib.compress(BODY)
    answer = await post(damage(packed), encoding)
    assert answer.status_code == 400
    error = answer.json()["error"]
    assert error["code"] == "invalid_encoding"
    assert encoding in error["message"]


async def test_an_empty_packed_body_is_refused_as_an_empty_one():
    for content in (b"", gzip.compress(b"")):
        answer = await post(content, "gzip")
        assert answer.status_code == 400
        assert answer.json()["error"]["code"] == "invalid_json"


@pytest.mark.parametrize(
    "content_type",
    [
        None,
        "text/plain",
        "text/plain;charset=UTF-8",
        "application/json; charset=utf-8",
        "application/x-www-form-urlencoded",
        "APPLICATION/JSON",
        "application/vnd.api+json",
    ],
)
@pytest.mark.parametrize("mark", [b"", b"\xef\xbb\xbf"], ids=["plain", "with-mark"])
async def test_json_is_json_whatever_it_is_called(content_type, mark):
    headers = {} if content_type is None else {"content-type": content_type}
    async with client_of(ScriptedGenerator()) as client:
        answer = await client.post(PATH, content=mark + BODY, headers=headers)
    assert answer.status_code == 200


@pytest.mark.parametrize("encoding", ["gzip", "deflate"])
async def test_a_body_of_another_encoding_is_read_to_its_end(encoding):
    """A client that still sends would see its connection reset, and not the answer."""
    taken = []

    async def pieces() -> AsyncIterator[bytes]:
        for piece in (b"{no gzip, no deflate", b" and some more", b" to the end}"):
            taken.append(piece)
            yield piece

    async with client_of(ScriptedGenerator()) as client:
        answer = await client.post(PATH, content=pieces(), headers={"content-encoding": encoding})
    assert (answer.status_code, len(taken)) == (400, 3)
    assert f"the body is not {encoding}" in answer.json()["error"]["message"]
