"""A ZMQ socket in an event loop: nothing stays behind, and an error is told once."""

from __future__ import annotations

import asyncio
import select
import time
from collections.abc import Iterator

import pytest
import zmq

from deployments.link.loop_socket import LoopSocket

LIMIT_S = 30.0
NUM_FRAMES = 2000  # several times what is taken at once

Pair = tuple[zmq.Socket[bytes], zmq.Socket[bytes]]


@pytest.fixture
def pair() -> Iterator[Pair]:
    """Two connected sockets."""
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    here, there = context.socket(zmq.PAIR), context.socket(zmq.PAIR)
    here.linger = there.linger = 0
    here.sndhwm = there.sndhwm = here.rcvhwm = there.rcvhwm = 2 * NUM_FRAMES
    there.connect(f"tcp://127.0.0.1:{here.bind_to_random_port('tcp://127.0.0.1')}")
    yield here, there
    here.close()
    there.close()
    context.term()


def fail(error: Exception) -> None:
    raise AssertionError("the socket failed") from error


def wait_signalled(socket: zmq.Socket[bytes]) -> None:
    """Wait for a frame without a turn of the loop, until a send would look at the socket as well.

    ZMQ looks only now and then while it sends.
    """
    assert select.select([int(socket.get(zmq.FD))], [], [], LIMIT_S)[0]
    time.sleep(0.05)


async def until(done: asyncio.Event) -> None:
    async with asyncio.timeout(LIMIT_S):
        await done.wait()


async def test_what_came_before_and_in_one_go_is_all_taken(pair: Pair) -> None:
    here, there = pair
    for number in range(NUM_FRAMES):
        there.send(b"%d" % number, zmq.NOBLOCK)
    assert await asyncio.to_thread(here.poll, int(LIMIT_S * 1e3))
    taken: list[bytes] = []
    done = asyncio.Event()

    def take(parts: list[bytes]) -> None:
        taken.extend(parts)
        if len(taken) == NUM_FRAMES:
            done.set()

    socket = LoopSocket(here, take, fail)
    await until(done)
    socket.close()
    assert taken == [b"%d" % number for number in range(NUM_FRAMES)]


async def test_a_send_does_not_hide_a_frame_that_came(pair: Pair) -> None:
    """It takes the signal of the frame with it, before the loop has seen that."""
    here, there = pair
    taken: list[bytes] = []
    done = asyncio.Event()

    def take(parts: list[bytes]) -> None:
        taken.extend(parts)
        done.set()

    socket = LoopSocket(here, take, fail)
    await asyncio.sleep(0.1)  # connected, and all signals of that are taken
    there.send(b"came")
    wait_signalled(here)
    assert socket.send([b"went"]) == ""
    await until(done)
    socket.close()
    assert taken == [b"came"]


async def test_the_loop_has_its_turn_between_many_frames(pair: Pair) -> None:
    """Also where each frame is answered."""
    here, there = pair
    for number in range(NUM_FRAMES):
        there.send(b"%d" % number, zmq.NOBLOCK)
    assert await asyncio.to_thread(here.poll, int(LIMIT_S * 1e3))
    num_taken = 0
    sockets: list[LoopSocket] = []

    def take(parts: list[bytes]) -> None:
        nonlocal num_taken
        num_taken += 1
        assert sockets[0].send(parts) == ""

    sockets.append(LoopSocket(here, take, fail))
    most, before = 0, 0
    async with asyncio.timeout(LIMIT_S):
        while num_taken < NUM_FRAMES:
            await asyncio.sleep(0)
            most, before = max(most, num_taken - before), num_taken
    sockets[0].close()
    assert most <= NUM_FRAMES / 3


async def test_nothing_comes_after_a_close_within_a_frame(pair: Pair) -> None:
    here, there = pair
    for word in (b"first", b"second"):
        there.send(word)
    assert await asyncio.to_thread(here.poll, int(LIMIT_S * 1e3))
    taken: list[bytes] = []
    sockets: list[LoopSocket] = []

    def take(parts: list[bytes]) -> None:
        taken.extend(parts)
        sockets[0].close()

    sockets.append(LoopSocket(here, take, fail))
    await asyncio.sleep(0.1)
    assert taken == [b"first"]
    loop = asyncio.get_running_loop()
    assert not loop.remove_reader(int(here.get(zmq.FD))), "nothing is read for it any more"


async def test_a_full_queue_loses_the_frame_and_says_so() -> None:
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    with context.socket(zmq.DEALER) as alone:  # nobody is connected
        alone.linger = 0
        socket = LoopSocket(alone, lambda parts: None, fail)
        assert socket.send([b"lost"]) == "send queue full"
        socket.close()
    context.term()


async def test_an_error_ends_it_and_is_told_once(pair: Pair) -> None:
    here, there = pair
    told: list[Exception] = []
    done = asyncio.Event()

    def refuse(parts: list[bytes]) -> None:
        raise ValueError(parts[0].decode())

    def note(error: Exception) -> None:
        told.append(error)
        done.set()

    socket = LoopSocket(here, refuse, note)
    for word in (b"first", b"second"):
        there.send(word)
    await until(done)
    await asyncio.sleep(0.05)
    assert [str(error) for error in told] == ["first"]
    assert not socket.is_receiving
    socket.close()
