"""A question and its answer over a link that may lose, double, delay and reorder messages.

Whoever waits for a reply waits here: the message is sent again, unchanged, at intervals, because
every receiver repeats its stored answer for a message it has seen. What counts as an answer is
the caller's to say; late and doubled replies are no news and extend no wait.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeVar

from models.errors import LinkLost
from router.ports import Channel

Request = TypeVar("Request")
Reply = TypeVar("Reply")
Answer = TypeVar("Answer")


async def await_answer(
    channel: Channel[Request, Reply],
    message: Request,
    take: Callable[[Reply], Answer | None],
    *,
    limit_s: float,
    resend_interval_s: float,
) -> Answer:
    """Wait for the answer to a message that has been sent; send it again at intervals.

    Args:
        channel: where the message went and its answer comes from.
        message: what to send again.
        take: the answer in a reply, or None if the reply is not (yet) an answer.
        limit_s: how long to wait altogether.
        resend_interval_s: seconds after which the message counts as lost.

    Raises:
        LinkLost: the other end is known to be gone, or there was no answer within `limit_s`.
    """
    waited_s = 0.0
    while True:
        interval_s = min(resend_interval_s, limit_s - waited_s)
        try:
            async with asyncio.timeout(interval_s):
                while True:
                    answer = take(await channel.receive())
                    if answer is not None:
                        return answer
        except TimeoutError:
            waited_s += interval_s
            if waited_s >= limit_s:
                raise LinkLost(f"no answer within {limit_s:g} s") from None
            channel.send(message)
