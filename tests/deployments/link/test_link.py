import asyncio
import contextlib
import logging
import threading
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator

import pytest
import zmq

from deployments.link.client import LinkChannel, LinkClient
from deployments.link.frames import (
    MAX_FRAME_BYTES,
    AllowList,
    FrameCodec,
    KeyPair,
    Renew,
    configure_client,
    wait_readable,
)
from deployments.link.masks import LinkMaskSource
from deployments.link.server import AsyncLinkServer, LinkServer, group_by_peer
from models.protocol.errors import LinkLost, Unavailable
from models.protocol.messages import (
    Close,
    ConstraintRequest,
    Endpoint,
    EngineReply,
    EngineRequest,
    GrammarClose,
    MaskMiss,
    MaskRequest,
    Masks,
    NeedOpen,
    Propose,
    Sampling,
)
from tests.cases.messages import proposing
from tests.fakes.constraint_link import ScriptedConstraint, mask_request
from tests.harness.waiting import wait_until

WAIT_S = 5.0


def propose(session_id: str, seq: int) -> Propose:
    return proposing(session_id, seq, [1, 2, 3], k=4)


class EchoThread:
    """A leader in miniature: answers every Propose by NeedOpen of the same seq."""

    def __init__(self) -> None:
        self.server: LinkServer[EngineRequest] = LinkServer(EngineRequest)
        self.batches: list[list[EngineRequest]] = []
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        poller = zmq.Poller()
        poller.register(self.server.socket, zmq.POLLIN)
        while not self._stopping.is_set():
            if not wait_readable(poller, 0.02):
                continue
            received = self.server.receive()
            self.batches.append([message for _, message in received])
            self.server.send(
                (peer, NeedOpen(session_id=message.session_id, seq=message.seq, epoch=1))
                for peer, message in received
                if isinstance(message, Propose)
            )

    def stop(self) -> None:
        self._stopping.set()
        self._thread.join(WAIT_S)
        self.server.close()


@pytest.fixture
async def client() -> AsyncIterator[LinkClient]:
    links = LinkClient()
    yield links
    await links.close()


@pytest.fixture
def echo(client: LinkClient) -> Iterator[EchoThread]:
    """A leader that has let `client` in."""
    thread = EchoThread()
    thread.server.allow(client.public_key)
    yield thread
    thread.stop()


def channel_to(
    client: LinkClient, echo: EchoThread, session_id: str
) -> LinkChannel[EngineRequest, EngineReply]:
    return client.channel(echo.server.endpoint, session_id, EngineReply)


async def receive(channel: LinkChannel[EngineRequest, EngineReply]) -> EngineReply:
    async with asyncio.timeout(WAIT_S):
        return await channel.receive()


async def test_replies_reach_the_session_that_asked(client: LinkClient, echo: EchoThread) -> None:
    channels = {name: channel_to(client, echo, name) for name in ("a", "b", "c")}
    for seq in range(5):
        for name, channel in channels.items():
            channel.send(propose(name, seq))
    for name, channel in channels.items():
        for seq in range(5):
            assert await receive(channel) == NeedOpen(session_id=name, seq=seq, epoch=1)


async def test_open_sessions_renew_their_leases(
    client: LinkClient, echo: EchoThread, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("deployments.link.client.RENEWAL_S", 0.05)
    renewed: list[list[str]] = []
    echo.server.on_renewed = renewed.append
    first, second = (channel_to(client, echo, name) for name in ("a", "b"))
    first.send(propose("a", 1))
    await receive(first)
    assert renewed[:2] == [["a"], ["b"]], "at once, or a lease might outlive its holder"
    await wait_until(lambda: renewed[-1] == ["a", "b"])
    second.close()
    await wait_until(lambda: renewed[-1] == ["a"])
    assert all(isinstance(message, Propose) for batch in echo.batches for message in batch)


async def test_messages_of_one_tick_are_one_frame_each_way(client: LinkClient) -> None:
    server: LinkServer[EngineRequest] = LinkServer(EngineRequest)
    server.allow(client.public_key)
    codec: FrameCodec[EngineRequest | Renew] = FrameCodec(EngineRequest | Renew)
    channels = [client.channel(server.endpoint, name, EngineReply) for name in ("a", "b")]
    for seq in range(8):
        for name, channel in zip(("a", "b"), channels, strict=True):
            channel.send(propose(name, seq))
    assert await asyncio.to_thread(server.socket.poll, int(WAIT_S * 1e3))
    peer, frame = server.socket.recv_multipart()
    kinds = Counter(type(message) for message in codec.decode(frame))
    assert kinds == {Propose: 16, Renew: 2}
    assert not server.socket.poll(20), "a second frame"
    grouped = group_by_peer([(peer, 1), (b"other", 2), (peer, 3)])
    assert grouped == {peer: [1, 3], b"other": [2]}
    server.close()


async def test_key_that_is_not_allowed_gets_nothing(echo: EchoThread) -> None:
    stranger = LinkClient()
    channel = channel_to(stranger, echo, "a")
    channel.send(propose("a", 0))
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.2):
            await channel.receive()
    assert echo.batches == []
    echo.server.allow(stranger.public_key)  # as a lease does; a new connection gets through
    stranger.drop(echo.server.endpoint, "refused")
    channel = channel_to(stranger, echo, "a")
    channel.send(propose("a", 1))
    assert await receive(channel) == NeedOpen(session_id="a", seq=1, epoch=1)
    await stranger.close()


async def test_a_dropped_connection_wakes_all_sessions_of_the_endpoint(
    client: LinkClient, echo: EchoThread
) -> None:
    channels = [channel_to(client, echo, name) for name in ("a", "b")]
    waiting = [asyncio.create_task(receive(channel)) for channel in channels]
    await asyncio.sleep(0)
    client.drop(echo.server.endpoint, "the process is gone")
    for task in waiting:
        with pytest.raises(LinkLost):
            await task
    channels[0].send(propose("a", 0))  # swallowed
    with pytest.raises(LinkLost):
        await channels[0].receive()


async def test_closed_channel_leaves_newer_channel_of_same_session(
    client: LinkClient, echo: EchoThread
) -> None:
    old = channel_to(client, echo, "a")
    new = channel_to(client, echo, "a")
    old.send(Close(session_id="a", epoch=1))
    old.close()
    new.send(propose("a", 7))
    assert await receive(new) == NeedOpen(session_id="a", seq=7, epoch=1)
    assert [type(message) for message in echo.batches[0]] == [Close, Propose]


@pytest.mark.parametrize(
    "frame",
    [b"", b"\xc1", b"\x93\x01\x02\x03", b"\x91\x81\xa4type\xa4nope", b"\x80"],
    ids=["empty", "no-msgpack", "wrong-items", "unknown-tag", "not-an-array"],
)
async def test_malformed_frames_are_dropped_and_logged(
    client: LinkClient, echo: EchoThread, frame: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    keys = KeyPair.generate()
    echo.server.allow(keys.public_key)
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    with context.socket(zmq.DEALER) as socket:
        configure_client(socket, keys, echo.server.endpoint.public_key, 16)
        socket.connect(echo.server.endpoint.address)
        with caplog.at_level(logging.WARNING):
            socket.send(frame)
            deadline = time.monotonic() + WAIT_S
            while not caplog.records and time.monotonic() < deadline:  # noqa: ASYNC110  # a log
                await asyncio.sleep(0.005)
    context.term()
    assert "malformed frame" in caplog.text
    channel = channel_to(client, echo, "a")
    channel.send(propose("a", 3))
    assert await receive(channel) == NeedOpen(session_id="a", seq=3, epoch=1)


def test_allow_list_is_bounded_and_forgets_the_longest_unseen() -> None:
    allowed = AllowList(max_peers=2)
    for key in ("a", "b", "a", "c"):
        allowed.add(key)
    assert [allowed.callback("*", key) for key in (b"a", b"b", b"c")] == [True, False, True]


def test_secret_key_is_not_shown() -> None:
    keys = KeyPair.generate()
    assert keys.secret_key not in repr(keys)


async def test_masks_over_a_link_come_from_a_plain_thread() -> None:
    constraint = ScriptedConstraint()
    source = LinkMaskSource()
    constraint.server.allow(source.public_key)

    def ask(*requests: MaskRequest, num_answers: int) -> list[Masks | MaskMiss]:
        source.request(requests)
        answers: list[Masks | MaskMiss] = []
        deadline = time.monotonic() + WAIT_S
        while len(answers) < num_answers and time.monotonic() < deadline:
            answers += source.poll(0.1)
        return answers

    source.open("a", constraint.server.endpoint)
    source.open("b", constraint.server.endpoint)
    three = [mask_request("a", 0), mask_request("b", 1), mask_request("gone", 2)]
    answers = await asyncio.to_thread(ask, *three, num_answers=2)
    assert [(type(answer), answer.session_id, answer.ticket) for answer in answers] == [
        (Masks, "a", 0),
        (MaskMiss, "b", 1),
    ]
    assert constraint.frames == [2]
    source.close("a")
    (answer,) = await asyncio.to_thread(ask, mask_request("b", 3), num_answers=1)
    assert answer.ticket == 3
    source.close("b")
    source.shutdown()  # would not return with a socket still open
    await constraint.server.close()


def masks_of(num_bytes: int, ticket: int) -> Masks:
    return Masks(
        session_id="a",
        ticket=ticket,
        committed_len=0,
        committed_hash=0,
        num_valid_rows=1,
        row_bytes=num_bytes,
        rows=bytes(num_bytes),
    )


async def test_masks_of_many_sessions_at_once_arrive() -> None:
    """Of 64 sessions, each with the highest k, for a 128k vocabulary: 68 MB in one tick."""
    size, num_sessions = 65 * 16_384, 64
    assert size * num_sessions > MAX_FRAME_BYTES

    def answer_all(peer: bytes, messages: list[ConstraintRequest]) -> None:
        for message in messages:
            if isinstance(message, MaskRequest):
                server.reply(peer, masks_of(size, message.ticket))

    server: AsyncLinkServer[ConstraintRequest] = AsyncLinkServer(ConstraintRequest, answer_all)
    server.start()
    source = LinkMaskSource()
    server.allow(source.public_key)
    source.open("a", server.endpoint)

    def ask() -> list[int]:
        source.request([mask_request("a", ticket) for ticket in range(num_sessions)])
        tickets: list[int] = []
        deadline = time.monotonic() + 2 * WAIT_S
        while len(tickets) < num_sessions and time.monotonic() < deadline:
            tickets += [answer.ticket for answer in source.poll(0.1)]
        return tickets

    assert await asyncio.to_thread(ask) == list(range(num_sessions))
    source.close("a")
    source.shutdown()
    await server.close()


async def test_async_server_survives_malformed_frames_and_unknown_peers() -> None:
    constraint = ScriptedConstraint()
    with contextlib.suppress(LinkLost):
        constraint.server.reply(b"nobody", NeedOpen(session_id="x", seq=0, epoch=1))
    links = LinkClient()
    constraint.server.allow(links.public_key)
    channel = links.channel(constraint.server.endpoint, "a", Masks | MaskMiss)
    channel.send(NeedOpen(session_id="a", seq=0, epoch=1))  # not a request this server knows
    channel.send(GrammarClose(session_id="a", epoch=0))
    await asyncio.sleep(0.05)
    channel.send(mask_request("a", 4))
    async with asyncio.timeout(WAIT_S):
        masks = await channel.receive()
    assert masks.ticket == 4
    await links.close()
    await constraint.server.close()


async def test_a_connection_that_fails_to_receive_is_lost(
    client: LinkClient, echo: EchoThread
) -> None:
    """A reply without a session id is a fault of ours; sessions must not wait on a deaf link."""
    channel = client.channel(echo.server.endpoint, "a", Sampling)
    waiting = asyncio.create_task(receive(channel))
    channel.send(propose("a", 0))
    with pytest.raises(LinkLost, match="the link failed"):
        await waiting


def test_an_impossible_mask_endpoint_is_a_value_error() -> None:
    masks = LinkMaskSource()
    for address, key in (("tcp://nowhere", masks.public_key), ("tcp://127.0.0.1:9", "short")):
        with pytest.raises(ValueError, match=address):
            masks.open("s", Endpoint(address=address, public_key=key, epoch=1))
    masks.close("s")
    masks.shutdown()


async def test_a_closed_client_opens_nothing_more_and_says_so(echo: EchoThread) -> None:
    """A socket opened while `close` waits would be waited for in the event loop, for ever."""
    links = LinkClient()
    channel_to(links, echo, "a")
    closing = [asyncio.create_task(links.close()) for _ in range(2)]
    await asyncio.sleep(0)
    with pytest.raises(Unavailable, match="links of this process are closed"):
        channel_to(links, echo, "late")
    await asyncio.gather(*closing)
    assert links.context.closed
    await links.close()
