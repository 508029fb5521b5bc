"""Masks that were asked of a constraint service whose connection breaks: missed at once."""

import asyncio
import time
from collections.abc import Sequence
from functools import partial

from deployments.link.masks import LinkMaskSource
from models.protocol.messages import Endpoint, MaskMiss, Masks
from tests.fakes.constraint_link import ScriptedConstraint, mask_request

WAIT_S = 30.0
LONG_S = 5.0  # that an engine would wait for a mask; nothing here takes so long


class Relay:
    """A TCP port that leads to a service until `cut`, and leads there again for new connections."""

    def __init__(self) -> None:
        self._writers: list[asyncio.StreamWriter] = []
        self._tasks: set[asyncio.Task[None]] = set()

    async def start(self, endpoint: Endpoint) -> Endpoint:
        port = int(endpoint.address.rpartition(":")[2])
        self._server = await asyncio.start_server(partial(self._serve, port), "127.0.0.1", 0)
        address = f"tcp://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        return Endpoint(address=address, public_key=endpoint.public_key, epoch=endpoint.epoch)

    async def _serve(
        self, port: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        there, back = await asyncio.open_connection("127.0.0.1", port)
        self._writers += [writer, back]
        for source, sink in ((reader, back), (there, writer)):
            self._tasks.add(asyncio.create_task(self._copy(source, sink)))

    async def _copy(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        while data := await source.read(65_536):
            sink.write(data)

    def cut(self) -> None:
        for writer in self._writers:
            writer.transport.abort()
        self._writers.clear()

    async def close(self) -> None:
        self.cut()
        self._server.close()
        await asyncio.wait(self._tasks)


async def answers(source: LinkMaskSource, num: int) -> Sequence[Masks | MaskMiss]:
    """So many answers, each of which must come long before an engine gives up."""

    def collect() -> list[Masks | MaskMiss]:
        found: list[Masks | MaskMiss] = []
        end_s = time.monotonic() + WAIT_S
        while len(found) < num and time.monotonic() < end_s:
            found += source.poll(LONG_S)
        return found

    return await asyncio.to_thread(collect)


async def test_a_lost_service_is_not_waited_for() -> None:
    lost, other = ScriptedConstraint(is_mute=True), ScriptedConstraint(is_mute=True)
    source = LinkMaskSource()
    for service in (lost, other):
        service.server.allow(source.public_key)
    source.open("a", lost.server.endpoint)
    source.open("b", lost.server.endpoint)
    source.open("c", other.server.endpoint)
    source.request(
        [mask_request("a", 2), mask_request("a", 1), mask_request("b", 3), mask_request("c", 5)]
    )
    await lost.has(3)
    await other.has(5)
    await lost.server.close()
    first, *missed = await answers(source, 3)
    assert isinstance(first, Masks), "it was answered before"
    assert [(miss.ticket, miss.reason) for miss in missed if isinstance(miss, MaskMiss)] == [
        (1, "failed"),
        (3, "failed"),
    ]
    source.request([mask_request("b", 4), mask_request("c", 6)])
    assert {(each.ticket, type(each)) for each in await answers(source, 2)} == {
        (4, MaskMiss),
        (6, Masks),
    }, "what is asked of a lost service is missed too, and of no other"
    source.open("a", other.server.endpoint)
    source.request([mask_request("a", 8)])
    (masks,) = await answers(source, 1)
    assert isinstance(masks, Masks)
    for session_id in "abc":
        source.close(session_id)
    source.shutdown()
    await other.server.close()


async def test_a_connection_that_is_there_again_serves() -> None:
    service, relay = ScriptedConstraint(is_mute=True), Relay()
    source = LinkMaskSource()
    service.server.allow(source.public_key)
    source.open("a", await relay.start(service.server.endpoint))
    source.request([mask_request("a", 1)])
    await service.has(1)
    relay.cut()
    (miss,) = await answers(source, 1)
    assert isinstance(miss, MaskMiss)
    assert "broke" in miss.message
    answer: Masks | MaskMiss = miss
    ticket = 2
    end_s = time.monotonic() + WAIT_S
    while not isinstance(answer, Masks) and time.monotonic() < end_s:
        ticket += 2
        source.request([mask_request("a", ticket)])
        (answer,) = await answers(source, 1)  # not one that was missed before
        assert answer.ticket == ticket
        await asyncio.sleep(0.02)
    assert isinstance(answer, Masks)
    source.close("a")
    source.shutdown()
    await relay.close()
    await service.server.close()


async def test_a_session_that_is_closed_misses_nothing() -> None:
    service = ScriptedConstraint(is_mute=True)
    source = LinkMaskSource()
    service.server.allow(source.public_key)
    source.open("a", service.server.endpoint)
    source.open("b", service.server.endpoint)
    source.request([mask_request("a", 1), mask_request("b", 3)])
    await service.has(3)
    source.close("a")
    await service.server.close()
    assert [each.ticket for each in await answers(source, 1)] == [3]
    source.close("b")
    source.shutdown()
