"""Runs cases of a part until the time is over; gathers what they counted and what failed."""

from __future__ import annotations

import asyncio
import time
import traceback
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from loadtest.fuzz.cases import Failure, OpenPart, Outcome, RunCase, case_seed
from loadtest.fuzz.memory import MemoryLog

CASE_LIMIT_S = 180.0  # a case takes about a second; one that takes this long hangs
_MAX_TRACE = 60  # last lines of a failure's trace that are told; its command tells all
_MAX_FAILURES = 20  # a part that fails so often is stopped


@dataclass(slots=True)
class PartResult:
    """The results of a part."""

    part: str
    counts: Counter[str] = field(default_factory=Counter)
    failures: list[Failure] = field(default_factory=list)
    violations: list[str] = field(default_factory=list)  # not of one case: memory, nothing done
    length_s: float = 0.0
    memory: MemoryLog = field(default_factory=MemoryLog)

    def to_json(self) -> dict[str, object]:
        """Return the results as a dict for the result file."""
        growth = self.memory.growth_mib
        return {
            "part": self.part,
            "length_s": round(self.length_s, 1),
            "counts": dict(sorted(self.counts.items())),
            "rss_mib": [round(x) for x in (*self.memory.samples[:1], *self.memory.samples[-1:])],
            "growth_after_warm_up_mib": None if growth is None else round(growth, 1),
            "failures": [
                {"seed": f.seed, "command": f.command, "complaints": list(f.complaints)}
                for f in self.failures
            ],
            "violations": self.violations,
        }


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits that end a part before its time is over."""

    cases: int | None = None  # None: no limit
    failures: int = _MAX_FAILURES


async def run_part(
    part: str,
    open_part: OpenPart,
    seed: int,
    length_s: float,
    *,
    limits: Limits | None = None,
    log: Callable[[str], None] = print,
) -> PartResult:
    """Run cases with the seeds that follow from `seed`, at least one, until the time is over."""
    limits = limits or Limits()
    report = PartResult(part)
    began_s = time.monotonic()
    async with open_part() as run_case:
        number = 0
        while number == 0 or time.monotonic() - began_s < length_s:
            if number == limits.cases or len(report.failures) >= limits.failures:
                break
            outcome = await run_one(report, run_case, case_seed(seed, part, number), log)
            if outcome.complaints and outcome.trace:
                log("\n".join(outcome.trace[-_MAX_TRACE:]))
            number += 1
    report.length_s = time.monotonic() - began_s
    if report.memory.complaint:
        report.violations.append(report.memory.complaint)
    return report


async def run_one(
    report: PartResult, run_case: RunCase, seed: int, log: Callable[[str], None] = print
) -> Outcome:
    """Run one case; what it complains about joins the report and is logged at once."""
    try:
        async with asyncio.timeout(CASE_LIMIT_S):
            outcome = await run_case(seed)
    except TimeoutError:
        outcome = Outcome(complaints=[f"the case hangs: no end within {CASE_LIMIT_S:g} s"])
    except Exception:  # noqa: BLE001 - whatever comes out of a case is a finding
        outcome = Outcome(complaints=[traceback.format_exc(limit=-8)])
    report.memory.sample()
    report.counts.update(outcome.counts)
    if outcome.complaints:
        failure = Failure(report.part, seed, tuple(outcome.complaints))
        report.failures.append(failure)
        for complaint in outcome.complaints[:5]:
            log(f"FAILED {report.part}: {complaint}")
        log(f"  repeat: {failure.command}")
    return outcome
