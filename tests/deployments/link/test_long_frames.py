"""Much at once for one peer: no frame is longer than ZMQ lets through on one connection."""

from __future__ import annotations

import asyncio

import pytest

from deployments.link.client import LinkClient
from deployments.link.frames import MAX_FRAME_BYTES, FrameCodec
from deployments.link.server import AsyncLinkServer, LinkServer, Peer
from models.protocol.messages import (
    ConstraintReply,
    ConstraintRequest,
    EngineReply,
    EngineRequest,
    Failed,
    GrammarClose,
    GrammarRefused,
    NeedOpen,
    Open,
    Sampling,
)

WAIT_S = 20.0
HALF = "x" * (MAX_FRAME_BYTES // 2)


def failed(session_id: str, message: str = HALF) -> Failed:
    return Failed(session_id=session_id, seq=1, code="internal", message=message)


async def test_what_an_engine_says_in_one_tick_arrives_however_long() -> None:
    server: LinkServer[EngineRequest] = LinkServer(EngineRequest)
    links = LinkClient()
    try:
        server.allow(links.public_key)
        channels = {n: links.channel(server.endpoint, n, EngineReply) for n in "abc"}
        opened = Open(session_id="a", epoch=1, sampling=Sampling(), eos_ids=[], prompt_len=1)
        channels["a"].send(opened)
        assert await asyncio.to_thread(server.socket.poll, int(WAIT_S * 1e3))
        [(peer, message)] = server.receive()
        assert message == opened
        server.send([(peer, failed(name)) for name in "abc"])
        server.send([(peer, NeedOpen(session_id="a", seq=2, epoch=1))])
        async with asyncio.timeout(WAIT_S):
            for name, channel in channels.items():
                assert await channel.receive() == failed(name)
            assert await channels["a"].receive() == NeedOpen(session_id="a", seq=2, epoch=1)
    finally:
        await links.close()
        server.close()


async def test_what_a_constraint_service_says_in_one_tick_arrives_however_long() -> None:
    def refuse(peer: Peer, messages: list[ConstraintRequest]) -> None:
        for name in "abc" * len(messages):
            server.reply(peer, refused(name))

    def refused(session_id: str) -> GrammarRefused:
        return GrammarRefused(session_id=session_id, message=HALF, is_client_error=False)

    server: AsyncLinkServer[ConstraintRequest] = AsyncLinkServer(ConstraintRequest, refuse)
    links = LinkClient()
    try:
        server.allow(links.public_key)
        server.start()
        channels = {n: links.channel(server.endpoint, n, ConstraintReply) for n in "abc"}
        channels["a"].send(GrammarClose(session_id="a", epoch=1))
        async with asyncio.timeout(WAIT_S):
            for name, channel in channels.items():
                assert await channel.receive() == refused(name)
    finally:
        await links.close()
        await server.close()


@pytest.mark.parametrize("num_long", [0, 1, 2, 5])
def test_frames_are_few_and_in_order(num_long: int) -> None:
    codec: FrameCodec[EngineReply] = FrameCodec(EngineReply)
    short = [failed(str(i), "short") for i in range(10)]
    messages = [*short[:3], *[failed("long", HALF)] * num_long, *short[3:]]
    frames = codec.encode(messages)
    assert [message for frame in frames for message in codec.decode(frame)] == messages
    assert all(len(frame) <= MAX_FRAME_BYTES for frame in frames)
    assert len(frames) <= max(1, 5 * num_long)  # halved until a long one is alone
