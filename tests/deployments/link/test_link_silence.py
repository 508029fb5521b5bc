"""Links to processes that are stopped, with the other end in a process of its own."""

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass

import msgspec
import pytest

from deployments.link.client import LinkClient
from deployments.link.frames import KeyPair
from deployments.link.server import LinkServer
from models.protocol.errors import LinkLost, Unavailable
from models.protocol.messages import Close, Endpoint, EngineReply, NeedOpen

WAIT_S = 30.0
SILENCE_S = 1.0


def serve_echo() -> None:
    """The other process: answers every message by NeedOpen, until its input ends."""
    server: LinkServer[Close] = LinkServer(Close)
    print(msgspec.json.encode(server.endpoint).decode(), flush=True)
    server.allow(sys.stdin.readline().strip())
    print("allowed", flush=True)
    while True:
        server.socket.poll()
        server.send(
            (peer, NeedOpen(session_id=message.session_id, seq=message.epoch, epoch=1))
            for peer, message in server.receive()
        )


@dataclass(frozen=True)
class Echo:
    process: subprocess.Popen[str]
    endpoint: Endpoint

    def allow(self, public_key: str) -> None:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(public_key + "\n")
        self.process.stdin.flush()
        assert self.process.stdout.readline() == "allowed\n"


@pytest.fixture
def echo() -> Iterator[Echo]:
    process = subprocess.Popen(
        [sys.executable, __file__],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    with process:
        try:
            assert process.stdout is not None
            yield Echo(process, msgspec.json.decode(process.stdout.readline(), type=Endpoint))
        finally:
            process.kill()


async def answered(links: LinkClient, echo: Echo, session_id: str) -> bool:
    channel = links.channel(echo.endpoint, session_id, EngineReply)
    channel.send(Close(session_id=session_id, epoch=3))
    try:
        async with asyncio.timeout(WAIT_S):
            return (await channel.receive()) == NeedOpen(session_id=session_id, seq=3, epoch=1)
    except LinkLost:
        return False


def nobody_at(address: str) -> Endpoint:
    return Endpoint(address=address, public_key=KeyPair.generate().public_key, epoch=1)


async def test_a_port_that_takes_and_closes_is_no_sign_of_life() -> None:
    """As another process's would that got the port of one that died."""

    async def close(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.close()

    links = LinkClient(silence_timeout_s=SILENCE_S)
    async with await asyncio.start_server(close, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        endpoint = nobody_at(f"tcp://127.0.0.1:{port}")
        channel = links.channel(endpoint, "a", EngineReply)
        with pytest.raises(LinkLost):
            async with asyncio.timeout(WAIT_S / 2):
                await channel.receive()
    await links.close()


async def test_an_address_that_is_none_is_refused_and_holds_nothing() -> None:
    links = LinkClient(silence_timeout_s=SILENCE_S)
    endpoint = nobody_at("nowhere")
    with pytest.raises(Unavailable, match="'nowhere' is no address"):
        links.channel(endpoint, "a", EngineReply)
    async with asyncio.timeout(WAIT_S):
        await links.close()  # it waits for every open socket


async def test_a_stopped_process_loses_its_sessions(echo: Echo) -> None:
    links = LinkClient(silence_timeout_s=SILENCE_S)
    echo.allow(links.public_key)
    assert await answered(links, echo, "a")
    waiting = links.channel(echo.endpoint, "b", EngineReply)
    await asyncio.sleep(2 * SILENCE_S)  # an idle link is not a silent one
    assert await answered(links, echo, "c")
    echo.process.send_signal(signal.SIGSTOP)
    with pytest.raises(LinkLost, match="silent"):
        async with asyncio.timeout(WAIT_S):
            await waiting.receive()
    echo.process.send_signal(signal.SIGCONT)
    assert await answered(links, echo, "d"), "a later lease connects anew"
    await links.close()


async def test_a_process_that_never_takes_the_call_is_given_up(echo: Echo) -> None:
    links = LinkClient(silence_timeout_s=SILENCE_S)
    echo.allow(links.public_key)
    echo.process.send_signal(signal.SIGSTOP)
    assert not await answered(links, echo, "a")
    await links.close()


async def test_a_killed_process_loses_its_sessions(echo: Echo) -> None:
    links = LinkClient(silence_timeout_s=SILENCE_S)
    echo.allow(links.public_key)
    assert await answered(links, echo, "a")
    waiting = links.channel(echo.endpoint, "a", EngineReply)
    echo.process.kill()
    with pytest.raises(LinkLost):
        async with asyncio.timeout(WAIT_S):
            await waiting.receive()
    await links.close()


if __name__ == "__main__":
    serve_echo()
