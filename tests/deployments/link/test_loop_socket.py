"""A ZMQ socket in an event loop: nothing stays behind, and an error is told once."""

from __future__ import annotations

import asyncio
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


async def test_frames_that_come_while_others_are_sent_are_taken(pair: Pair) -> None:
    """A send takes back the signal of a frame that came meanwhile."""
    done = asyncio.Event()
    num_back = 0
    ends: list[LoopSocket] = []

    def answer(parts: list[bytes]) -> None:
        assert ends[0].send(parts)

    def take(parts: list[bytes]) -> None:
        nonlocal num_back
        num_back += 1
        if num_back == NUM_FRAMES:
            done.set()
        elif num_back % 2:
            assert ends[1].send(parts)
            assert ends[1].send(parts)

    ends += [LoopSocket(pair[0], answer, fail), LoopSocket(pair[1], take, fail)]
    assert ends[1].send([b"first"])
    assert ends[1].send([b"second"])
    await until(done)
    for end in ends:
        end.close()


async def test_a_full_queue_loses_the_frame_and_says_so(pair: Pair) -> None:
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    with context.socket(zmq.DEALER) as alone:  # nobody is connected
        alone.linger = 0
        socket = LoopSocket(alone, lambda parts: None, fail)
        assert not socket.send([b"lost"])
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
