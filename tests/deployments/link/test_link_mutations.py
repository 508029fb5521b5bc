"""Broken frames from a peer that is let in: they are dropped, and everybody else is answered."""

from __future__ import annotations

import asyncio
import logging
import random
from collections import deque
from collections.abc import Sequence

import pytest
import zmq

from deployments.engine.loop import EngineLoop
from deployments.link.frames import MAX_FRAME_BYTES, FrameCodec
from deployments.link.masks import LinkMaskSource
from deployments.link.server import AsyncLinkServer
from loadtest.fuzz.engines.requests import random_sampling
from loadtest.fuzz.links.frames import random_frame
from models.protocol.messages import (
    Close,
    ConstraintRequest,
    DraftProbs,
    Endpoint,
    EngineReply,
    EngineRequest,
    MaskMiss,
    MaskRequest,
    Masks,
    Proposal,
    Sampling,
    Verdict,
)
from models.sampling.draft_probs import NUM_PAIRS
from tests.cases.messages import opening, proposing, verifying
from tests.fakes.engines import make_draft, make_target

NUM_FRAMES = 2000
WAIT_S = 20.0
NOT_UTF8 = b"\x91\x83\xa4type\xa5close\xaasession_id\xa1\xff\xa5epoch\x01"


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


def test_a_message_that_no_frame_can_hold_costs_no_other(caplog: pytest.LogCaptureFixture) -> None:
    codec: FrameCodec[EngineRequest] = FrameCodec(EngineRequest)
    names = ("a", "\ud800", "x" * MAX_FRAME_BYTES, "b")
    messages = [Close(session_id=name, epoch=1) for name in names]
    frames = codec.encode([*messages, Close(session_id="c", epoch=2**70)])
    decoded = [message for frame in frames for message in codec.decode(frame)]
    assert [message.session_id for message in decoded] == ["a", "b"]
    assert codec.num_dropped == 3
    assert f"a frame has at most {MAX_FRAME_BYTES}" in caplog.text


def mask_answer(rng: random.Random, session_id: str, ticket: int) -> Masks | MaskMiss:
    if rng.random() < 0.5:
        return MaskMiss(session_id=session_id, ticket=ticket, reason="stale")
    return Masks(
        session_id=session_id,
        ticket=ticket,
        committed_len=0,
        committed_hash=0,
        num_valid_rows=1,
        row_bytes=32,
        rows=b"\xff" * 32,
    )


async def test_who_asks_for_masks_survives_broken_answers() -> None:
    rng = random.Random(1)
    num_broken = NUM_FRAMES // 4

    def on_messages(peer: bytes, messages: list[ConstraintRequest]) -> None:
        for message in messages:
            if isinstance(message, MaskRequest):
                for _ in range(num_broken):
                    frame = random_frame(rng, [mask_answer(rng, "s", message.ticket)])
                    server.socket.send_multipart([peer, frame], zmq.NOBLOCK)
                server.reply(peer, mask_answer(rng, "s", 1234))

    server: AsyncLinkServer[ConstraintRequest] = AsyncLinkServer(ConstraintRequest, on_messages)
    server.start()
    source = LinkMaskSource()
    server.allow(source.public_key)
    source.open("s", server.endpoint)
    request = MaskRequest(
        session_id="s", epoch=1, ticket=3, base_len=0, prefix_hash=0, chain=[5], num_rows=2
    )
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
        self.num_answers = 0

    def open(self, session_id: str, endpoint: Endpoint) -> None:
        pass

    def request(self, requests: Sequence[MaskRequest]) -> None:
        self._asked += requests

    def poll(self, timeout_s: float) -> list[Masks | MaskMiss]:
        asked, self._asked = self._asked, []
        answers = []
        for request in asked:
            answer = mask_answer(self._rng, request.session_id, request.ticket)
            answers += self._codec.decode(random_frame(self._rng, [answer]))
        self.num_answers += len(answers)
        return answers

    def close(self, session_id: str) -> None:
        pass


class FramePort:
    """Takes in one frame at a time, and keeps the replies."""

    def __init__(self) -> None:
        self.codec: FrameCodec[EngineRequest] = FrameCodec(EngineRequest)
        self.frames: deque[bytes] = deque()
        self.replies: list[EngineReply] = []

    def receive(self, timeout_s: float) -> list[tuple[object, EngineRequest]]:
        frame = self.frames.popleft() if self.frames else b"\x90"
        return [("peer", message) for message in self.codec.decode(frame)]

    def send(self, replies: list[tuple[object, EngineReply]]) -> None:
        self.replies += [reply for _, reply in replies]

    def wake(self) -> None:
        pass


@pytest.mark.parametrize("kind", ["draft", "target"])
def test_an_engine_still_answers_after_thousands_of_broken_frames(kind: str) -> None:
    rng = random.Random(2)
    masks, port = BrokenMasks(rng), FramePort()
    engine = make_target(masks) if kind == "target" else make_draft(masks)
    loop = EngineLoop(engine, port, idle_timeout_s=1e9, poll_s=0.0)
    constraint = Endpoint(address="tcp://127.0.0.1:1", public_key="k" * 40, epoch=3)

    def asking(session_id: str, seq: int) -> list[EngineRequest]:
        """A session that begins, with a question."""
        prompt = [rng.randrange(200) for _ in range(rng.randrange(4, 30))]
        guarded_by = rng.choice([None, constraint])
        sampling = random_sampling(rng, 20)
        start = opening(session_id, sampling, len(prompt), constraint=guarded_by)
        if kind == "draft":
            return [start, proposing(session_id, seq, prompt, 3)]
        pairs = bytes(4 * NUM_PAIRS * 3)
        probs = DraftProbs(num_pairs=NUM_PAIRS, token_ids=pairs, probs=pairs)
        said = rng.choice([None, probs])
        return [start, verifying(session_id, seq, prompt, prompt[:3], said, run_on=2)]

    for number in range(NUM_FRAMES):
        session_id = f"s{number % 8}"
        loop.leases.grant(session_id)
        port.frames.append(random_frame(rng, asking(session_id, number)))
        loop.tick()
    assert port.codec.num_dropped > NUM_FRAMES // 10
    assert loop.stats().num_steps > NUM_FRAMES // 20
    assert masks.num_answers > NUM_FRAMES // 50
    loop.leases.grant("healthy")
    prompt = [3, 1, 4, 1, 5]
    ask = (
        proposing("healthy", 1, prompt, 2)
        if kind == "draft"
        else verifying("healthy", 1, prompt, [1, 2])
    )
    port.frames += port.codec.encode([opening("healthy", Sampling(), len(prompt)), ask])
    for _ in range(NUM_FRAMES):
        loop.tick()
        answers = [reply for reply in port.replies if reply.session_id == "healthy"]
        if answers:
            break
    assert isinstance(answers[0], Proposal if kind == "draft" else Verdict)
