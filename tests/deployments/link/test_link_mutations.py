"""Broken frames from a peer that is let in: they are dropped, and everybody else is answered."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Sequence

import msgspec
import pytest
import zmq

from deployments.engine.loop import EngineLoop
from deployments.link.client import LinkClient
from deployments.link.frames import FrameCodec, KeyPair, configure_client
from deployments.link.masks import LinkMaskSource
from deployments.link.server import AsyncLinkServer, LinkServer
from models.protocol.messages import (
    Close,
    ConstraintReply,
    ConstraintRequest,
    Endpoint,
    EngineReply,
    EngineRequest,
    GrammarOpen,
    GrammarReady,
    MaskMiss,
    MaskRequest,
    Masks,
    Proposal,
    Sampling,
    Verdict,
)
from tests.cases.messages import opening, proposing, verifying
from tests.cases.mutations import broken, constraint_messages, engine_messages, mask_answers
from tests.fakes.engines import EPOCH, make_draft, make_target

NUM_FRAMES = 2000
WAIT_S = 20.0
NOT_UTF8 = b"\x91\x83\xa4type\xa5close\xaasession_id\xa1\xff\xa5epoch\x01"


class Peer:
    """A peer that may come in and sends whatever bytes it likes."""

    def __init__(self, endpoint: Endpoint, keys: KeyPair) -> None:
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._socket = self._context.socket(zmq.DEALER)
        configure_client(self._socket, keys, endpoint.public_key, 2 * NUM_FRAMES)
        self._socket.connect(endpoint.address)

    def send(self, frame: bytes) -> None:
        self._socket.send(frame, zmq.NOBLOCK)

    def close(self) -> None:
        self._socket.close(linger=0)
        self._context.term()


@pytest.mark.parametrize("message_type", [EngineRequest, EngineReply, Masks | MaskMiss])
def test_text_that_is_not_utf8_is_a_malformed_frame(message_type: object) -> None:
    codec: FrameCodec[object] = FrameCodec(message_type)
    for frame in (NOT_UTF8, b"\x91" * 100_000, b"\xdd\xff\xff\xff\xff"):
        assert codec.decode(frame) == []
    assert codec.num_dropped == 3


def test_a_peer_cannot_fill_the_log(caplog: pytest.LogCaptureFixture) -> None:
    codec: FrameCodec[EngineRequest] = FrameCodec(EngineRequest)
    with caplog.at_level(logging.WARNING):
        for _ in range(1000):
            codec.decode(NOT_UTF8)
    assert codec.num_dropped == 1000
    # Each once or, where an earlier test of this process joined Serve's logging, twice.
    assert len({record.getMessage() for record in caplog.records}) == 10


def test_a_message_that_msgpack_cannot_hold_costs_no_other() -> None:
    codec: FrameCodec[EngineRequest] = FrameCodec(EngineRequest)
    messages = [Close(session_id=name, epoch=1) for name in ("a", "\ud800", "b")]
    frames = codec.encode([*messages, Close(session_id="c", epoch=2**70)])
    decoded = [message for frame in frames for message in codec.decode(frame)]
    assert [message.session_id for message in decoded] == ["a", "b"]
    assert codec.num_dropped == 2


async def test_an_event_loops_server_still_answers_after_thousands_of_broken_frames() -> None:
    """Also where what a frame says breaks its handler, as a key does that is not ASCII."""
    num_seen = 0

    def on_messages(peer: bytes, messages: list[ConstraintRequest]) -> None:
        nonlocal num_seen
        for message in messages:
            num_seen += 1
            if isinstance(message, GrammarOpen):
                for key in message.peers:
                    server.allow(key)
                ready = GrammarReady(session_id=message.session_id, compile_ms=0.0, committed_len=0)
                server.reply(peer, ready)

    server: AsyncLinkServer[ConstraintRequest] = AsyncLinkServer(
        ConstraintRequest, on_messages, high_water_mark=2 * NUM_FRAMES
    )
    server.start()
    rng = random.Random(0)
    keys = KeyPair.generate()
    server.allow(keys.public_key)
    peer = Peer(server.endpoint, keys)
    links = LinkClient()
    server.allow(links.public_key)
    channel = links.channel(server.endpoint, "healthy", ConstraintReply)
    start = constraint_messages("healthy", 1)[0]
    try:
        peer.send(NOT_UTF8)
        bad_key = msgspec.structs.replace(start, peers=["schlüssel"])
        peer.send(msgspec.msgpack.encode([bad_key]))
        for number in range(NUM_FRAMES):
            messages = constraint_messages(f"s{number % 5}", 1)
            peer.send(broken(messages[: rng.randrange(1, 5)], rng))
            if number % 100 == 0:
                await asyncio.sleep(0)
        async with asyncio.timeout(WAIT_S):
            while num_seen + server.num_dropped_frames < NUM_FRAMES:  # noqa: ASYNC110  # counters
                await asyncio.sleep(0.01)
            channel.send(start)
            assert isinstance(await channel.receive(), GrammarReady)
        assert server.is_receiving
        assert server.num_dropped_frames > NUM_FRAMES // 10
        assert num_seen > NUM_FRAMES // 10
    finally:
        peer.close()
        await links.close()
        await server.close()


async def test_who_asks_for_masks_survives_broken_answers() -> None:
    rng = random.Random(1)
    num_broken = NUM_FRAMES // 4

    def on_messages(peer: bytes, messages: list[ConstraintRequest]) -> None:
        for message in messages:
            if isinstance(message, MaskRequest):
                for _ in range(num_broken):
                    frame = broken([rng.choice(mask_answers("s", message.ticket))], rng)
                    server.socket.send_multipart([peer, frame], zmq.NOBLOCK)
                server.reply(peer, mask_answers("s", 1234)[0])

    server: AsyncLinkServer[ConstraintRequest] = AsyncLinkServer(ConstraintRequest, on_messages)
    server.start()
    source = LinkMaskSource()
    server.allow(source.public_key)
    source.open("s", server.endpoint)
    request = constraint_messages("s", 1)[2]
    tickets: list[int] = []
    try:
        source.request([request])
        async with asyncio.timeout(WAIT_S):
            while 1234 not in tickets:
                answers = await asyncio.to_thread(source.poll, 0.05)
                tickets += [answer.ticket for answer in answers]
        assert 1 < len(tickets) <= num_broken
    finally:
        source.close("s")
        source.shutdown()
        await server.close()


class BrokenMasks:
    """A `MaskSource` whose answers are as good as random."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self._codec: FrameCodec[Masks | MaskMiss] = FrameCodec(Masks | MaskMiss)
        self._asked: list[MaskRequest] = []

    def open(self, session_id: str, endpoint: Endpoint) -> None:
        pass

    def request(self, requests: Sequence[MaskRequest]) -> None:
        self._asked += requests

    def poll(self, timeout_s: float) -> list[Masks | MaskMiss]:
        asked, self._asked = self._asked, []
        answers = []
        for request in asked:
            answer = self._rng.choice(mask_answers(request.session_id, request.ticket))
            answers += self._codec.decode(broken([answer], self._rng))
        return answers

    def close(self, session_id: str) -> None:
        pass


class ServerPort:
    """What `leader.LinkPort` is, without waiting: frames in from a real server."""

    def __init__(self, server: LinkServer[EngineRequest]) -> None:
        self._server = server

    def receive(self, timeout_s: float) -> list[tuple[object, EngineRequest]]:
        return [*self._server.receive()]

    def send(self, replies: list[tuple[object, EngineReply]]) -> None:
        self._server.send((peer, reply) for peer, reply in replies if isinstance(peer, bytes))

    def wake(self) -> None:
        pass


@pytest.mark.parametrize("kind", ["draft", "target"])
async def test_an_engine_still_answers_after_thousands_of_broken_frames(kind: str) -> None:
    rng = random.Random(2)
    engine = make_target(BrokenMasks(rng)) if kind == "target" else make_draft(BrokenMasks(rng))
    server: LinkServer[EngineRequest] = LinkServer(
        EngineRequest, high_water_mark=2 * NUM_FRAMES, max_frames=4
    )
    loop = EngineLoop(engine, ServerPort(server), idle_timeout_s=1e9, poll_s=0.0)
    keys = KeyPair.generate()
    server.allow(keys.public_key)
    peer = Peer(server.endpoint, keys)
    links = LinkClient()
    server.allow(links.public_key)
    channel = links.channel(server.endpoint, "healthy", EngineReply)
    try:
        peer.send(NOT_UTF8)
        for number in range(NUM_FRAMES):
            session_id = f"s{number % 8}"
            loop.admit(session_id)
            start, propose, verify, close = engine_messages(session_id, EPOCH, number, rng)
            second = rng.choice([verify if kind == "target" else propose] * 9 + [close])
            peer.send(broken([start, second], rng))
            if number % 2:
                loop.tick()
                await asyncio.sleep(0)
        async with asyncio.timeout(WAIT_S):  # the peer's connection may stand later than the other
            while (
                server.num_dropped_frames <= NUM_FRAMES // 10
                or loop.stats().num_steps <= NUM_FRAMES // 20
            ):
                loop.tick()
                await asyncio.sleep(0)
        loop.admit("healthy")
        prompt = [3, 1, 4, 1, 5]
        channel.send(opening("healthy", Sampling(), len(prompt)))
        ask = proposing("healthy", 1, prompt, 2)
        channel.send(ask if kind == "draft" else verifying("healthy", 1, prompt, [1, 2]))
        async with asyncio.timeout(WAIT_S):
            receiving = asyncio.create_task(channel.receive())
            while not receiving.done():
                loop.tick()
                await asyncio.sleep(0)
        assert isinstance(await receiving, Proposal if kind == "draft" else Verdict)
    finally:
        peer.close()
        await links.close()
        server.close()
