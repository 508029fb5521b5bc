"""Waiting for an answer: what renews the wait, what does not, and where it ends."""

from __future__ import annotations

import asyncio
from functools import partial

import pytest

from models.protocol.errors import LinkLost, Overloaded
from router.remote.exchange import Patience, await_answer


class Replies:
    """A channel on which replies come at given times; `sent` are the messages."""

    def __init__(self, *due: tuple[float, str]) -> None:
        self._due = list(due)
        self._began_s = 0.0
        self.sent: list[str] = []

    def send(self, message: str) -> None:
        self.sent.append(message)

    async def receive(self) -> str:
        now = asyncio.get_running_loop().time()
        self._began_s = self._began_s or now
        if not self._due:
            await asyncio.Event().wait()
        await asyncio.sleep(max(0.0, self._began_s + self._due[0][0] - now))
        return self._due.pop(0)[1]

    def peek(self) -> None:
        """Nothing is read ahead."""


def _progress(reply: str) -> int | None:
    """ "alive" and "alive 7" are signs of life; the number is how far the work is."""
    word, _, number = reply.partition(" ")
    return int(number or 0) if word == "alive" else None


async def wait(channel: Replies, **changes: float) -> str:
    return await await_answer(
        channel,
        "question",
        lambda reply: reply if reply == "answer" else None,
        Patience(**{"limit_s": 0.3, "resend_interval_s": 0.2, "queue_limit_s": 5.0, **changes}),
        progress=_progress,
    )


async def test_signs_of_life_extend_the_wait_and_need_no_repeat() -> None:
    channel = Replies(*((0.1 * i, "alive") for i in range(1, 9)), (0.9, "answer"))
    assert await wait(channel, resend_interval_s=0.25) == "answer"
    assert channel.sent == []


async def test_old_replies_extend_nothing() -> None:
    channel = Replies(*((0.1 * i, "old") for i in range(1, 9)), (0.9, "answer"))
    with pytest.raises(LinkLost, match=r"no answer within 0\.3 s"):
        await wait(channel)
    assert channel.sent == ["question"]


async def test_silence_after_a_sign_of_life_is_silence() -> None:
    channel = Replies((0.1, "alive"))
    with pytest.raises(LinkLost):
        await wait(channel)


async def test_signs_of_life_are_believed_within_a_limit() -> None:
    channel = Replies(*((0.1 * i, "alive") for i in range(1, 99)))
    with pytest.raises(Overloaded, match=r"the limit is 0\.5 s") as caught:
        await wait(channel, queue_limit_s=0.5)
    assert caught.value.retry_after_s >= 1.0


async def test_work_that_gets_on_may_take_longer_than_a_place_in_the_queue() -> None:
    channel = Replies(*((0.1 * i, f"alive {8 * i}") for i in range(1, 12)), (1.2, "answer"))
    assert await wait(channel, queue_limit_s=0.5) == "answer"


async def test_work_that_gets_on_no_more_ends_at_the_limit() -> None:
    """Less than was done before is no progress: late signs of life come in any order."""
    begun = [(0.1 * i, f"alive {8 * i}") for i in range(1, 4)]
    stuck = [(0.1 * i, f"alive {24 - i % 2}") for i in range(4, 99)]
    channel = Replies(*begun, *stuck)
    with pytest.raises(Overloaded, match=r"the limit is 0\.5 s"):
        await wait(channel, queue_limit_s=0.5)
    assert 80 < len(channel._due) < 93


async def test_without_a_word_on_signs_of_life_none_counts() -> None:
    channel = Replies(*((0.1 * i, "alive") for i in range(1, 9)))
    take = partial(lambda reply: None)
    with pytest.raises(LinkLost):
        await await_answer(channel, "question", take, Patience(0.3, 0.2))
