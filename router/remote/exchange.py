"""A question and its answer over a link that may lose, double, delay and reorder messages.

Every wait for a reply is here. The message is sent again, unchanged, at intervals. Every receiver
repeats its stored answer for a message it has seen. The caller says which replies are answers. Late
and doubled replies are ignored and extend no wait. A sign of life does. It means that the message
keeps its place, which it would lose by being sent elsewhere. It also reports the progress of the
work. A prefill that makes progress may take its time, a place in a queue may not.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from models.protocol.errors import LinkLost, Overloaded
from router.ports import Channel

_RETRY_AFTER_S = 5.0  # sessions that hold a model's cache for minutes do not end in one second

Request = TypeVar("Request")
Reply = TypeVar("Reply")
Answer = TypeVar("Answer")


@dataclass(frozen=True, slots=True)
class Patience:
    """The longest waits for one answer, in seconds.

    `limit_s`: for the answer or a sign of life. `resend_interval_s`: until the message counts as
    lost. `queue_limit_s`: for signs of life without progress.
    """

    limit_s: float
    resend_interval_s: float
    queue_limit_s: float = math.inf


async def await_answer(
    channel: Channel[Request, Reply],
    message: Request,
    take: Callable[[Reply], Answer | None],
    patience: Patience,
    *,
    progress: Callable[[Reply], int | None] = lambda reply: None,
) -> Answer:
    """Wait for the answer to a message that has been sent; send it again at intervals.

    Args:
        channel: where the message went and its answer comes from.
        message: what to send again.
        take: the answer in a reply, or None if the reply is not (yet) an answer.
        patience: how long to wait, and for what.
        progress: for a reply that is not an answer but says that one will come: a number that
            rises while the message is worked on; None for any other reply.

    Raises:
        LinkLost: the other end is known to be gone, or was silent for `patience.limit_s`.
        Overloaded: there were signs of life, but no answer and no progress for
            `patience.queue_limit_s`.
    """
    clock = asyncio.get_running_loop().time
    queued_since_s = clock()
    most_done = 0
    waited_s = 0.0
    limit_s = patience.limit_s
    while True:
        interval_s = min(patience.resend_interval_s, limit_s - waited_s)
        try:
            async with asyncio.timeout(interval_s):
                while True:
                    reply = await channel.receive()
                    answer = take(reply)
                    if answer is not None:
                        return answer
                    num_done = progress(reply)
                    if num_done is not None:
                        break
            waited_s = 0.0
            if num_done > most_done:
                most_done, queued_since_s = num_done, clock()
            _check_queue_limit(clock() - queued_since_s, patience.queue_limit_s)
        except TimeoutError:
            waited_s += interval_s
            if waited_s >= limit_s:
                raise LinkLost(f"no answer within {limit_s:g} s", "no_answer") from None
            channel.send(message)


def _check_queue_limit(waited_s: float, limit_s: float) -> None:
    if waited_s >= limit_s:
        raise Overloaded(
            f"the request waited for room on the model for {waited_s:.1f} s, "
            f"the limit is {limit_s:g} s",
            retry_after_s=_RETRY_AFTER_S,
        )
