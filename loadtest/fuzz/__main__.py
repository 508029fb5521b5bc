"""Attacks the real engines, links, router and HTTP routes with random cases, each repeatable.

    python -m loadtest.fuzz --minutes 30 --output loadtest/results/fuzz.json
    python -m loadtest.fuzz --parts engines --case 163517924063511

Runs in this process, with a tiny random pair that it writes itself; no cluster and no GPU. The
parts share the time. Each failure is printed with the command that runs exactly its case. Ends with
status 1 when something failed: a wrong answer, something still held, or memory that grows beyond
its limit.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import logging
import secrets
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from loadtest.fuzz.campaign import PartReport, run_one, run_part
from loadtest.fuzz.parts import PARTS
from loadtest.trial import frame


@dataclass(kw_only=True)
class Report(frame.Report):
    """The results of all parts."""

    seed: int = 0
    parts: list[PartReport] = field(default_factory=list)

    @property
    def problems(self) -> list[str]:
        """Violations of the parts, and a line for each failure."""
        found = [violation for part in self.parts for violation in part.violations]
        found += [f"{f.command}: {f.complaints[0]}" for part in self.parts for f in part.failures]
        return [*found, *super().problems]

    def content(self) -> dict[str, object]:
        """See `frame.Report`."""
        return {
            "seed": self.seed,
            "result": "all held" if self.is_clean else "violated",
            "parts": [part.to_json() for part in self.parts],
        }


def run(arguments: argparse.Namespace, report: Report) -> None:
    """Run every part for its share of the time, or one case of the first."""
    report.seed = arguments.seed
    with _quiet():
        if arguments.case is not None:
            repeat = _repeat(arguments.parts[0], arguments.case, arguments.times)
            report.parts.append(asyncio.run(repeat))
            return
        length_s = 60.0 * arguments.minutes / len(arguments.parts)
        for part in arguments.parts:
            print(f"{part}: {length_s:.0f} s, seed {arguments.seed}", flush=True)
            report.parts.append(asyncio.run(run_part(part, PARTS[part], arguments.seed, length_s)))
            print(_summary(report.parts[-1]), flush=True)


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Log no errors meanwhile: refusals and losses are what is asked for here."""
    logging.disable(logging.ERROR)
    try:
        yield
    finally:
        logging.disable(logging.NOTSET)


async def _repeat(part: str, seed: int, num_times: int) -> PartReport:
    """Run a case again; its whole trace is printed, where it has one."""
    report = PartReport(part)
    async with PARTS[part]() as run_case:
        for _ in range(num_times):
            outcome = await run_one(report, run_case, seed)
            if outcome.trace:
                print("\n".join(outcome.trace))
            if report.failures:
                break
    print(_summary(report))
    return report


def _summary(report: PartReport) -> str:
    growth = report.memory.growth_mib
    counts = ", ".join(f"{name} {count}" for name, count in sorted(report.counts.items()))
    grown = "not measured" if growth is None else f"{growth:+.1f} MiB"
    return (
        f"{report.part}: {len(report.failures)} failures in {report.length_s:.0f} s; "
        f"memory after the warm-up {grown}; {counts}"
    )


def _parse(argv: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m loadtest.fuzz", description=__doc__)
    parser.add_argument("--minutes", type=float, default=5.0, help="of all parts together")
    parser.add_argument(
        "--seed", type=int, default=secrets.randbits(32), help="of the run; random by default"
    )
    parser.add_argument("--parts", nargs="+", default=list(PARTS), help=", ".join(PARTS))
    parser.add_argument("--case", type=int, help="run this one case of the first part")
    parser.add_argument(
        "--times",
        type=int,
        default=1,
        help="run the case so often, until it fails: its requests are the same each time, but who "
        "shares a pass also hangs on the clock",
    )
    parser.add_argument("--output", type=Path, help="JSON file for the result")
    arguments = parser.parse_args(argv)
    for part in arguments.parts:
        if part not in PARTS:
            raise SystemExit(f"--parts: must be of {', '.join(PARTS)}, got {part!r}")
    return arguments


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; the exit status."""
    return frame.run_trial("loadtest.fuzz", _parse, run, Report(), argv)


if __name__ == "__main__":
    status = main()
    sys.stdout.flush()
    sys.exit(status)
