"""Sends requests when they are due, whatever has become of those before.

Arrivals are a Poisson process drawn from a seed. Nothing that the service does delays a later
arrival. The delay of the load itself is part of the result.
"""

from __future__ import annotations

import asyncio
import itertools
import random
import time
from collections.abc import Iterator
from dataclasses import dataclass, field

import httpx

from loadtest.client.client import LoadClient
from loadtest.client.goodput import Observed, Sent, Stretch, measure
from loadtest.client.workload import Asking
from loadtest.service.gauges import RUNNING, WAITING, gauges

_SCRAPE_S = 1.0
_DRAIN_S = 60.0


def arrivals(rate_per_s: float, length_s: float, rng: random.Random) -> list[float]:
    """Times within [0, length_s) of a Poisson process."""
    steps = (rng.expovariate(rate_per_s) for _ in itertools.count())
    return list(itertools.takewhile(lambda at_s: at_s < length_s, itertools.accumulate(steps)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """Seconds of one stretch, and what counts as in time."""

    settle_s: float  # from the first arrival to the measured time
    measured_s: float
    first_text_limit_s: float


@dataclass
class Queues:
    """The router's sessions, as they are now and at most since `reset`."""

    running: float = 0.0
    waiting: float = 0.0
    peak_running: float = 0.0
    peak_waiting: float = 0.0
    complaints: list[str] = field(default_factory=list)

    def reset(self) -> None:
        """Forget the peaks."""
        self.peak_running = self.peak_waiting = 0.0

    async def follow(self, base_url: str) -> None:
        """Read GET /metrics once a second until cancelled; a failure is a complaint."""
        async with httpx.AsyncClient(timeout=30.0) as client:
            while True:
                try:
                    response = await client.get(f"{base_url}/metrics")
                    found = gauges(response.raise_for_status().text)
                    self.running, self.waiting = found[RUNNING], found[WAITING]
                except (httpx.HTTPError, KeyError) as error:
                    self.complaints.append(f"GET /metrics: {type(error).__name__}: {error}")
                self.peak_running = max(self.peak_running, self.running)
                self.peak_waiting = max(self.peak_waiting, self.waiting)
                await asyncio.sleep(_SCRAPE_S)


async def run_stretch(
    client: LoadClient,
    askings: Iterator[Asking],
    queues: Queues,
    timing: Timing,
    *,
    rate_per_s: float,
    seed: str,
) -> Stretch:
    """Send arrivals at one rate, wait for all answers, and sum up.

    Raises:
        ValueError: nothing arrived in the measured time.
    """
    queues.reset()
    due = arrivals(rate_per_s, timing.settle_s + timing.measured_s, random.Random(seed))
    cpu_s = time.process_time()
    began_s = time.perf_counter()
    tasks = []
    for at_s in due:
        await asyncio.sleep(max(0.0, began_s + at_s - time.perf_counter()))
        tasks.append(asyncio.create_task(_send(client, next(askings), began_s + at_s)))
    await asyncio.sleep(
        max(0.0, began_s + timing.settle_s + timing.measured_s - time.perf_counter())
    )
    cpu_share = (time.process_time() - cpu_s) / (time.perf_counter() - began_s)
    observed = Observed(
        load_cpu_share=cpu_share,
        peak_running=queues.peak_running,
        peak_waiting=queues.peak_waiting,
    )
    sent = await asyncio.gather(*tasks)
    await _drained(queues)
    return measure(
        sent,
        rate_per_s=rate_per_s,
        from_s=began_s + timing.settle_s,
        to_s=began_s + timing.settle_s + timing.measured_s,
        first_text_limit_s=timing.first_text_limit_s,
        observed=observed,
    )


async def _send(client: LoadClient, asking: Asking, due_s: float) -> Sent:
    return Sent(due_s, await client.ask(asking))


async def _drained(queues: Queues) -> None:
    """Wait until the service is idle: one stretch must not burden the next.

    A service that keeps sessions after all answers are read is a complaint.
    """
    for _ in range(round(_DRAIN_S / _SCRAPE_S)):
        await asyncio.sleep(2 * _SCRAPE_S)  # the known state of the queues is up to that old
        if not queues.running and not queues.waiting:
            return
    queues.complaints.append(
        f"{queues.running:g} sessions run and {queues.waiting:g} wait long after all answers "
        "were read"
    )
