"""Part `failures`: a cluster that fails in every way, on virtual time, by one seed.

Router, pools, leases, engines, grammar hosts and codecs are those that serve. Processes, sockets,
Ray and the passes of models are simulated. A seed has one trace.
"""

from __future__ import annotations

import asyncio
import logging
import random
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from types import SimpleNamespace
from unittest import mock

from deployments.serve import timed_names
from deployments.serve.timed_names import AVOID_S, FULL_S, TimedNames
from loadtest.fuzz.cases import Outcome, in_thread
from loadtest.fuzz.failures.schedule import Schedule
from loadtest.fuzz.failures.virtual_time import VirtualTimeLoop

_CLOCKED = ("router.", "loadtest.frame.stages")  # modules that measure time


def simulate(seed: int) -> Outcome:
    """Run the schedule of a seed, in this thread."""
    outcome = Outcome()
    with virtual_runner(seed) as runner:
        try:
            schedule = runner.run(_made(seed))
            outcome.complaints = runner.run(schedule.run())
        except RuntimeError as error:  # all wait, and nothing will end it
            outcome.complaints.append(f"{type(error).__name__}: {error}")
    outcome.trace = schedule.network.trace
    outcome.counts = schedule.network.counts
    outcome.counts["cases"] = 1
    return outcome


async def _made(seed: int) -> Schedule:
    return Schedule(seed)


@contextmanager
def virtual_runner(seed: int) -> Iterator[asyncio.Runner]:
    """Yield a runner with virtual time; routers and stages read it, and jitter is the seed's."""
    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner, _virtual_clocks(runner, seed):
        yield runner


@contextmanager
def _virtual_clocks(runner: asyncio.Runner, seed: int) -> Iterator[None]:
    """Have modules read virtual time, know no replica yet, and jitter be the seed's."""
    loop = runner.get_loop()
    clock = SimpleNamespace(perf_counter=loop.time, monotonic=loop.time)
    dice = random.getstate()
    random.seed(seed)
    serve = logging.getLogger("ray.serve")  # tells each change of replicas
    with ExitStack() as stack, mock.patch.object(serve, "disabled", True):
        stack.callback(random.setstate, dice)
        for name, module in list(sys.modules.items()):
            if name.startswith(_CLOCKED) and getattr(module, "time", None) is time:
                stack.enter_context(mock.patch.object(module, "time", clock))
        for name, for_s in (("_avoided", AVOID_S), ("_full", FULL_S)):
            kept = TimedNames(for_s, loop.time)
            stack.enter_context(mock.patch.object(timed_names, name, kept))
        yield


open_failures = in_thread(simulate)
