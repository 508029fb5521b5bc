"""The fuzzer's part `proxies` sees mistakes between a client and the routes."""

from __future__ import annotations

from typing import Any

import pytest

from deployments.api.transport.encodings import _Inflating
from deployments.api.transport.paths import PlainPaths
from deployments.api.writing.sse import EventStream
from loadtest.fuzz.campaign import Limits, run_part
from loadtest.fuzz.parts import PARTS

SEED = 20
Patch = pytest.MonkeyPatch


def signs_of_life_are_no_comments(patch: Patch) -> None:
    patch.setattr(EventStream, "sign", b"waiting\n\n")


def a_slash_too_many_is_another_route(patch: Patch) -> None:
    patch.setattr(PlainPaths, "_plain", lambda paths, asked: asked)


def a_packed_body_has_no_limit(patch: Patch) -> None:
    patch.setattr(_Inflating, "_count", lambda decoder, piece: None)


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    "mistake",
    [
        signs_of_life_are_no_comments,
        a_slash_too_many_is_another_route,
        a_packed_body_has_no_limit,
    ],
    ids=lambda mistake: mistake.__name__,
)
async def test_a_mistake_is_seen(mistake: Any, monkeypatch: Patch) -> None:
    mistake(monkeypatch)
    report = await run_part(
        "proxies", PARTS["proxies"], SEED, 1e6, limits=Limits(30, 1), log=lambda line: None
    )
    assert report.failures
