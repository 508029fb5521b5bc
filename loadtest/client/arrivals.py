"""Requests that are sent when they are due, whatever has become of those before.

Arrivals are a Poisson process drawn from a seed. Nothing that the service does delays a later
arrival. The delay of the load itself is part of the result. A request is good if its answer is
whole and right and its first text came in time. Goodput is the number of good answers per second
that ended in the measured time. A rate is sustained if nearly all its arrivals became good.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import random
import time
from collections.abc import Iterator, MutableMapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from loadtest.client.answers import Answer
from loadtest.client.client import LoadClient, Reply
from loadtest.client.workload import Asking

SUSTAINED = 0.95  # share of arrivals that must become good


def take_precedence() -> Literal["real-time", "normal"]:
    """Give this thread real-time priority, where that is allowed, and say which it has.

    A sleeping process wakes up to a second late on a machine whose cores are all busy. That would
    be measured as the service's delay. A load belongs on a machine of its own; this is the next
    best thing. Threads and processes that this one starts have none of it.
    """
    try:
        policy = os.SCHED_RR | os.SCHED_RESET_ON_FORK
        os.sched_setscheduler(0, policy, os.sched_param(os.sched_get_priority_min(os.SCHED_RR)))
    except (AttributeError, OSError):  # another system, or no right to
        return "normal"
    return "real-time"


def arrivals(rate_per_s: float, length_s: float, rng: random.Random) -> list[float]:
    """Times within [0, length_s) of a Poisson process."""
    steps = (rng.expovariate(rate_per_s) for _ in itertools.count())
    return list(itertools.takewhile(lambda at_s: at_s < length_s, itertools.accumulate(steps)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """Seconds of one rate, and what counts as in time."""

    settle_s: float  # from the first arrival to the measured time
    measured_s: float
    first_text_limit_s: float


@dataclass(frozen=True, slots=True)
class Sent:
    """One arrival: when it was due, and how it went. Times by `time.perf_counter`."""

    due_s: float
    reply: Reply

    def is_good(self, first_text_limit_s: float) -> bool:
        """Return whether the answer is whole, right and in time."""
        reply = self.reply
        if not reply.is_whole or reply.first_text_s is None:
            return False
        return reply.first_text_s - reply.began_s <= first_text_limit_s


async def send(
    base_url: str,
    due: Sequence[float],
    askings: Iterator[Asking],
    known: MutableMapping[str, Answer] | None,
    began_s: float,
    *,
    api_key: str = "",
) -> list[Sent]:
    """Send requests at their times since `began_s`, and wait for all answers.

    Args:
        base_url: of the service.
        due: seconds.
        askings: the requests.
        known: see `LoadClient`.
        began_s: by `time.perf_counter`.
        api_key: see `open_client`.
    """

    async def one(client: LoadClient, asking: Asking, due_s: float) -> Sent:
        return Sent(due_s, await client.ask(asking))

    async with LoadClient(base_url, known, api_key=api_key) as client:
        tasks = []
        for at_s in due:
            await asyncio.sleep(max(0.0, began_s + at_s - time.perf_counter()))
            tasks.append(asyncio.create_task(one(client, next(askings), began_s + at_s)))
        return list(await asyncio.gather(*tasks))


def measure(sent: Sequence[Sent], began_s: float, timing: Timing) -> dict[str, float]:
    """Return the figures of one rate; those that there are no answers for are left out.

    `arrived_per_s`, `goodput_per_s`, `good_tokens_per_s` and `good_share` are of the measured time,
    all others of the whole time. `late_answers` are whole ones whose first text came too late.
    `turned_away` are 429s. `load_late_p99_s` is how much later than due the load was sent.

    Raises:
        ValueError: nothing arrived in the measured time.
    """
    from_s = began_s + timing.settle_s
    to_s, limit_s = from_s + timing.measured_s, timing.first_text_limit_s
    arrived = [one for one in sent if from_s <= one.due_s < to_s]
    if not arrived:
        raise ValueError(f"no arrival within {timing.measured_s:g} s")
    good = [one.reply for one in sent if one.is_good(limit_s)]
    ended = [reply for reply in good if from_s <= reply.ended_s < to_s]
    replies = [one.reply for one in sent]
    texts = [r.first_text_s - r.began_s for r in replies if r.is_whole and r.first_text_s]
    turned_away = [reply for reply in replies if reply.is_turned_away]
    refusals = [reply.ended_s - reply.began_s for reply in turned_away]
    after = [reply.retry_after_s for reply in turned_away if reply.retry_after_s is not None]
    return {
        "arrived_per_s": len(arrived) / timing.measured_s,
        "goodput_per_s": len(ended) / timing.measured_s,
        "good_tokens_per_s": sum(reply.num_tokens for reply in ended) / timing.measured_s,
        "good_share": sum(one.is_good(limit_s) for one in arrived) / len(arrived),
        "late_answers": len(texts) - len(good),
        "turned_away": len(turned_away),
        "failed": sum(bool(reply.complaint) for reply in replies),
        **quantiles("first_text", texts),
        **quantiles("refusal", refusals),
        **({"refusal_longest_s": max(refusals)} if refusals else {}),
        **({"retry_after_least_s": min(after), "retry_after_most_s": max(after)} if after else {}),
        "load_late_p99_s": float(
            np.quantile([one.reply.began_s - one.due_s for one in sent], 0.99)
        ),
    }


def quantiles(name: str, seconds: Sequence[float]) -> dict[str, float]:
    """Return p50, p95 and p99 as figures; none of no values."""
    return {
        f"{name}_{label}_s": float(np.quantile(seconds, share))
        for label, share in (("p50", 0.5), ("p95", 0.95), ("p99", 0.99))
        if seconds
    }
