import asyncio
import errno
from collections.abc import AsyncIterator
from typing import Any

import grpc
import pytest
import zmq
from ray.exceptions import RayError
from ray.serve.exceptions import BackPressureError

from deployments.ingress import pools
from deployments.ingress.pools import ServePool, engine_pool
from deployments.link.client import LinkClient
from deployments.link.server import LinkServer
from deployments.serve.timed_names import AVOID_S, FULL_S, TimedNames
from models.protocol.errors import LinkLost, NoReplica, Unavailable
from models.protocol.messages import (
    Close,
    EngineReply,
    EngineRequest,
    LeaseGrant,
    LeaseRefused,
    LeaseRequest,
    NeedOpen,
)

WAIT_S = 5.0
GRPC_ERROR = grpc.aio.AioRpcError(
    grpc.StatusCode.INTERNAL, grpc.aio.Metadata(), grpc.aio.Metadata(), "stream reset"
)


Script = list[LeaseGrant | LeaseRefused | Exception | None]


class Stream:
    """What a streaming handle call returns; the test is the replica."""

    def __init__(self, first: LeaseGrant | LeaseRefused | Exception | None) -> None:
        self.is_cancelled = False
        self._items: asyncio.Queue[LeaseGrant | LeaseRefused | Exception] = asyncio.Queue()
        if first is not None:
            self._items.put_nowait(first)

    def end(self, error: Exception | LeaseRefused) -> None:
        self._items.put_nowait(error)

    def cancel(self) -> None:
        self.is_cancelled = True

    async def __anext__(self) -> LeaseGrant | LeaseRefused:
        item = await self._items.get()
        if isinstance(item, Exception):
            raise item
        return item


class Handle:
    """A deployment handle whose replicas answer by script."""

    deployment_name = "Target"

    def __init__(self, script: Script) -> None:
        self.requests: list[LeaseRequest] = []
        self.streams: list[Stream] = []
        self._script = script

    def options(self, **options: Any) -> "Handle":
        assert options == {"stream": True, "method_name": "lease"}
        return self

    def remote(self, request: LeaseRequest) -> Stream:
        self.requests.append(request)
        self.streams.append(Stream(self._script[min(len(self.streams), len(self._script) - 1)]))
        return self.streams[-1]


class NoSockets:
    """A ZMQ context in a process that has no file descriptors left."""

    def socket(self, kind: int) -> Any:
        raise zmq.ZMQError(errno.EMFILE)


@pytest.fixture
async def links() -> AsyncIterator[LinkClient]:
    client = LinkClient()
    yield client
    await client.close()


@pytest.fixture
async def server(links: LinkClient) -> AsyncIterator[LinkServer[EngineRequest]]:
    engine: LinkServer[EngineRequest] = LinkServer(EngineRequest)
    engine.allow(links.public_key)
    yield engine
    engine.close()


@pytest.fixture
def avoided(monkeypatch: pytest.MonkeyPatch) -> TimedNames:
    """Names of replicas that refused, of this test alone."""
    names = TimedNames(AVOID_S)
    monkeypatch.setattr(pools, "avoided", lambda: names)
    return names


@pytest.fixture
def full(monkeypatch: pytest.MonkeyPatch) -> TimedNames:
    """Names of deployments whose replicas are full, of this test alone."""
    names = TimedNames(FULL_S)
    monkeypatch.setattr(pools, "full", lambda: names)
    return names


def pool(links: LinkClient, script: Script) -> tuple[ServePool[EngineRequest, EngineReply], Handle]:
    handle = Handle(script)
    return ServePool(handle, links, EngineReply), handle  # type: ignore[arg-type]  # a stand-in


async def test_lease_names_the_router_and_talks_to_the_leader(
    links: LinkClient, server: LinkServer[EngineRequest]
) -> None:
    engines, handle = pool(links, [LeaseGrant(endpoint=server.endpoint, max_model_len=7)])
    lease = await engines.lease("a", timeout_s=WAIT_S)
    assert handle.requests == [LeaseRequest(session_id="a", public_key=links.public_key)]
    assert lease.grant.max_model_len == 7
    lease.channel.send(Close(session_id="a", epoch=1))
    assert await asyncio.to_thread(server.socket.poll, int(WAIT_S * 1e3))
    [(peer, message)] = server.receive()
    assert message == Close(session_id="a", epoch=1)
    server.send([(peer, NeedOpen(session_id="a", seq=1, epoch=1))])
    async with asyncio.timeout(WAIT_S):
        assert await lease.channel.receive() == NeedOpen(session_id="a", seq=1, epoch=1)
    await lease.release()


async def test_refusals_are_asked_again_until_granted(
    links: LinkClient, server: LinkServer[EngineRequest]
) -> None:
    grant = LeaseGrant(endpoint=server.endpoint)
    engines, handle = pool(links, [RayError("dying"), BackPressureError(1, 1), GRPC_ERROR, grant])
    lease = await engines.lease("a", timeout_s=WAIT_S)
    assert len(handle.streams) == 4
    assert [stream.is_cancelled for stream in handle.streams] == [True, True, True, False]
    await lease.release()
    assert handle.streams[3].is_cancelled


async def test_a_replica_that_refuses_is_avoided_for_the_next_try(
    links: LinkClient, server: LinkServer[EngineRequest], avoided: TimedNames
) -> None:
    refusal = LeaseRefused(replica="hung", reason="one pass takes 30.0 s")
    engines, handle = pool(links, [refusal, LeaseGrant(endpoint=server.endpoint)])
    lease = await engines.lease("a", timeout_s=WAIT_S)
    assert [*avoided.names()] == ["hung"]
    assert [stream.is_cancelled for stream in handle.streams] == [True, False]
    await lease.release()
    engines, _ = pool(links, [refusal])
    with pytest.raises(Unavailable, match=r"within 0\.1 s: one pass takes 30\.0 s"):
        await engines.lease("a", timeout_s=0.1)


async def test_a_replica_of_another_vocabulary_gets_no_session(
    links: LinkClient, server: LinkServer[EngineRequest], avoided: TimedNames
) -> None:
    """While a model is changed, there are routers and replicas of both."""
    old, new = (
        LeaseGrant(endpoint=server.endpoint, replica=name, vocabulary=name)
        for name in ("old", "new")
    )
    handle: Any = Handle([new, old])
    engines = engine_pool(handle, links, vocabulary="old")
    lease = await engines.lease("a", timeout_s=WAIT_S)
    assert lease.grant.replica == "old"
    assert [*avoided.names()] == ["new"]
    assert [stream.is_cancelled for stream in handle.streams] == [True, False]
    await lease.release()
    handle = Handle([new])
    with pytest.raises(Unavailable, match="its model has other token ids than this router's"):
        await engine_pool(handle, links, vocabulary="old").lease("a", timeout_s=0.1)
    lease = await engine_pool(handle, links).lease("a", timeout_s=WAIT_S)
    await lease.release()


async def test_a_granted_lease_without_a_link_is_given_back(
    links: LinkClient, server: LinkServer[EngineRequest], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As when this process has no file descriptors left."""
    monkeypatch.setattr(links, "context", NoSockets())
    engines, handle = pool(links, [LeaseGrant(endpoint=server.endpoint)])
    with pytest.raises(zmq.ZMQError):
        await engines.lease("a", timeout_s=WAIT_S)
    assert [stream.is_cancelled for stream in handle.streams] == [True]


@pytest.mark.parametrize(
    ("first", "reason"),
    [
        (None, "others start, or do not answer"),
        (RayError("no GPU"), "no GPU"),
        (GRPC_ERROR, "INTERNAL: stream reset"),
    ],
    ids=["silence", "refusals", "grpc"],
)
@pytest.mark.usefixtures("full")
async def test_no_lease_within_the_limit(
    links: LinkClient, first: Exception | None, reason: str
) -> None:
    engines, handle = pool(links, [first])
    with pytest.raises(NoReplica, match=rf"no Target replica .* within 0\.1 s: .*{reason}"):
        await engines.lease("a", timeout_s=0.1)
    assert all(stream.is_cancelled for stream in handle.streams)


async def test_replicas_that_are_full_are_there(links: LinkClient, full: TimedNames) -> None:
    engines, _ = pool(links, [None])
    full.add("Draft")
    with pytest.raises(NoReplica):
        await engines.lease("a", timeout_s=0.1)
    full.add("Target")
    with pytest.raises(Unavailable, match=r"within 0\.1 s: all replicas are busy") as caught:
        await engines.lease("a", timeout_s=0.1)
    assert not isinstance(caught.value, NoReplica)


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (RayError("killed"), "gone"),
        (StopAsyncIteration(), "ended"),
        (RuntimeError("unheard of"), "gone"),
        (LeaseRefused(replica="r", reason="rank 0 died"), "gone"),
    ],
    ids=["dead", "ended", "unexpected", "its model is lost"],
)
async def test_end_of_the_stream_loses_the_channel_at_once(
    links: LinkClient,
    server: LinkServer[EngineRequest],
    error: Exception | LeaseRefused,
    reason: str,
) -> None:
    engines, handle = pool(links, [LeaseGrant(endpoint=server.endpoint)])
    lost = await engines.lease("a", timeout_s=WAIT_S)
    other = await engines.lease("b", timeout_s=WAIT_S)
    waiting = asyncio.create_task(lost.channel.receive())
    await asyncio.sleep(0)
    handle.streams[0].end(error)
    with pytest.raises(LinkLost) as caught:
        async with asyncio.timeout(WAIT_S):
            await waiting
    assert caught.value.reason == reason
    still_waiting = asyncio.create_task(other.channel.receive())
    await asyncio.sleep(0)
    assert not still_waiting.done(), "a lease that still holds was lost with another"
    await lost.release()
    await other.release()
    with pytest.raises(LinkLost):
        await still_waiting
