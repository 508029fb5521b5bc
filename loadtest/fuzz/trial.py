"""A trial of random cases against the real engines, links, router and HTTP routes, each repeatable.

It runs in this process, with a tiny random pair that it writes itself; no cluster and no GPU. The
parts share the time. Each failure is printed with the command that runs exactly its case. Failures
are wrong answers, something still held, and memory that grows beyond its limit.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from loadtest.fuzz.campaign import PartResult, run_one, run_part
from loadtest.fuzz.parts import PARTS
from loadtest.trial.scene import Event, Scene
from loadtest.trial.trial import Trial

_SEED_BITS = 32


@dataclass(frozen=True, kw_only=True)
class Cases(Event):
    """Cases of one part, as many as fit in `length_s`; their seeds follow from `seed`."""

    seed: int
    length_s: float
    stage: str = "process"
    workload: str = "cases"

    def happen(self, scene: Scene) -> Mapping[str, float]:
        """See `Event`."""
        with _quiet():
            found = asyncio.run(self._found())
        scene.notes |= {"seed": self.seed, **found.to_json()}
        scene.problems += found.violations
        scene.problems += [f"{one.command}: {one.complaints[0]}" for one in found.failures]
        growth = found.memory.growth_mib
        return {
            "cases": found.counts["cases"],
            "failures": len(found.failures) + len(found.violations),
            "minutes": found.length_s / 60,
            **({} if growth is None else {"grown_mib": growth}),
        }

    async def _found(self) -> PartResult:
        print(f"{self.way}: {self.length_s:.0f} s, seed {self.seed}", flush=True)
        return await run_part(self.way, PARTS[self.way], self.seed, self.length_s)


@dataclass(frozen=True, kw_only=True)
class OneCase(Cases):
    """One case, up to so many `times`, until it fails; its whole trace is printed if it has one.

    Its requests are the same each time. The clock decides who shares a pass.
    """

    times: int

    async def _found(self) -> PartResult:
        found = PartResult(self.way)
        async with PARTS[self.way]() as run_case:
            for _ in range(self.times):
                outcome = await run_one(found, run_case, self.seed)
                if outcome.trace:
                    print("\n".join(outcome.trace))
                if found.failures:
                    break
        return found


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Log no errors meanwhile: refusals and losses are what is asked for here."""
    logging.disable(logging.ERROR)
    try:
        yield
    finally:
        logging.disable(logging.NOTSET)


def _parts(scene: Scene) -> Iterator[Event]:
    terms = scene.terms
    if terms.case:
        yield OneCase(way=terms.parts[0], seed=terms.case, length_s=0.0, times=terms.times)
        return
    seed = terms.seed or secrets.randbits(_SEED_BITS)
    for part in terms.parts:
        yield Cases(way=part, seed=seed, length_s=60.0 * terms.minutes / len(terms.parts))


FUZZ = Trial(
    question="is any random request, frame, body, folder or failing cluster answered wrongly",
    terms={
        "minutes": 5.0,  # of all parts together
        "parts": tuple(PARTS),
        "seed": 0,  # of the run; 0: a new one
        "case": 0,  # seed of one case of the first part, to run it alone; 0: none
        "times": 1,  # how often that one is run, until it fails
    },
    choices={"parts": PARTS},
    quick={"minutes": 0.02},
    place=None,
    events=_parts,
)
