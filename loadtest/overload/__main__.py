"""Finds the rate of arrivals a service sustains, then sends twice and three times as many.

    python -m loadtest.overload --output loadtest/results/overload.json

Starts `serve run` of a config (`--config`, the demo's by default) privately and with the pods'
environment. If `--url` is given, it uses one that runs. Arrivals are a seeded Poisson process of
chats, JSON records and questions after a shared prompt. They do not wait for answers. Rates rise by
`--step` until fewer than 95% of arrivals become good answers: whole, right, first text within
`--first-text-limit`. The last rate before that is what the service sustains. Then come `--factors`
times that. Fails unless goodput (good answers per second) at the greatest factor is within 10% of
the peak of all stretches. A refused request must get 429 with Retry-After quickly, and nothing else
may go wrong. The load itself must be on time. Writes a JSON file and a figure next to it. Ends with
status 1 when something failed.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

import yaml
from tqdm import tqdm

from loadtest.client.arrivals import Queues, Timing, run_stretch
from loadtest.client.client import LoadClient
from loadtest.client.goodput import Stretch, violations
from loadtest.client.options import add_load_options, workload_of
from loadtest.client.precedence import take_precedence
from loadtest.client.workload import MIX
from loadtest.overload.plot import draw
from loadtest.service.served import POD_ENVIRONMENT
from loadtest.trial import frame
from loadtest.trial.frame import served_at

_ASKED = {kind: MIX[kind] for kind in ("chat", "record", "shared")}  # requests that can become good
_MOST_STEPS = 20

Measure = Callable[[float, str], Awaitable[Stretch]]  # takes a rate and its purpose


@dataclass(kw_only=True)
class Report(frame.Report):
    """The measurements so far."""

    load_priority: str = "normal"
    served_environment: Mapping[str, str] = field(default_factory=dict)  # beyond the usual
    search: list[Stretch] = field(default_factory=list)
    overload: list[Stretch] = field(default_factory=list)

    @property
    def sustained_per_s(self) -> float | None:
        """The highest rate that was sustained, as were all below it; None: the lowest was not."""
        sustained = [s.rate_per_s for s in self.search if s.is_sustained]
        return max(sustained) if sustained else None

    def content(self) -> dict[str, object]:
        """See `frame.Report`."""
        return {
            "all_held": self.is_clean,
            "violations": self.problems,
            "load_priority": self.load_priority,
            "served_environment": dict(self.served_environment),
            "sustained_per_s": self.sustained_per_s,
            "search": [_record(stretch) for stretch in self.search],
            "overload": [_record(stretch) for stretch in self.overload],
        }

    def draw(self, path: Path) -> None:
        """See `plot.draw`."""
        draw(self.search, self.overload, path)


def run(arguments: argparse.Namespace, report: Report) -> None:
    """Serve, or use what is served at --url, and measure."""
    report.served_environment = {} if arguments.url else POD_ENVIRONMENT
    with served_at(arguments.url, arguments.config, report) as base_url:
        asyncio.run(measure(arguments, base_url, report))


async def measure(arguments: argparse.Namespace, base_url: str, report: Report) -> None:
    """Search the sustained rate, overload, and check what must hold."""
    config = yaml.safe_load(arguments.config.read_text(encoding="utf-8"))
    askings = workload_of(arguments, config).mixed(
        random.Random(f"{arguments.seed}-overload"), _ASKED
    )
    timing = Timing(
        settle_s=arguments.settle_s,
        measured_s=arguments.measured_s,
        first_text_limit_s=arguments.first_text_limit,
    )
    queues = Queues()
    report.load_priority = take_precedence()
    async with LoadClient(base_url, expects_same_text=not arguments.any_text) as client:
        following = asyncio.create_task(queues.follow(base_url))
        try:

            async def stretch(rate_per_s: float, what: str) -> Stretch:
                bar.set_postfix_str(f"{what}: {rate_per_s:.2f} arrivals/s")
                measured = await run_stretch(
                    client,
                    askings,
                    queues,
                    timing,
                    rate_per_s=rate_per_s,
                    seed=f"{arguments.seed}-{what}-{rate_per_s:.4f}",
                )
                bar.update()
                bar.write(line(measured))
                return measured

            with tqdm(desc="overload", unit=" stretch") as bar:
                bar.write(HEAD)
                await _search(arguments, report, stretch)
                await _overload(arguments, report, stretch)
        finally:
            following.cancel()
            report.violations += queues.complaints
    report.violations += violations(
        report.search,
        report.overload,
        goodput_loss=arguments.goodput_loss,
        refusal_limit_s=arguments.refusal_limit,
        late_limit_s=arguments.late_limit,
    )


async def _search(arguments: argparse.Namespace, report: Report, stretch: Measure) -> None:
    """Rising rates, until one is not sustained."""
    for number in range(_MOST_STEPS):
        rate_per_s = arguments.first_rate * arguments.step**number
        report.search.append(await stretch(rate_per_s, "search"))
        if not report.search[-1].is_sustained:
            return


async def _overload(arguments: argparse.Namespace, report: Report, stretch: Measure) -> None:
    """Multiples of what is sustained."""
    sustained = report.sustained_per_s
    if sustained is None:
        raise RuntimeError(
            f"not even {arguments.first_rate:g} arrivals/s are sustained: lower --first-rate"
        )
    for factor in sorted(arguments.factors):
        report.overload.append(await stretch(factor * sustained, f"{factor:g}x"))


HEAD = (
    f"{'arrivals/s':>10} {'good/s':>7} {'tokens/s':>9} {'good':>6} {'first text p50/p99, s':>22} "
    f"{'429s':>6} {'429 after p50/p99, s':>21} {'failed':>7} {'waiting':>8} {'load CPU':>9}"
)


def line(stretch: Stretch) -> str:
    """Show a stretch for people, under `HEAD`."""
    first = "-" if stretch.first_text_s is None else "{:.2f} / {:.2f}".format(*stretch.first_text_s)
    refused = "-" if stretch.refusal_s is None else "{:.3f} / {:.3f}".format(*stretch.refusal_s[:2])
    return (
        f"{stretch.rate_per_s:10.2f} {stretch.goodput_per_s:7.2f} "
        f"{stretch.good_tokens_per_s:9.0f} {stretch.good_share:6.1%} {first:>22} "
        f"{stretch.turned_away:6} {refused:>21} {stretch.failed:7} "
        f"{stretch.peak_waiting:8.0f} {stretch.load_cpu_share:9.0%}"
    )


def _record(stretch: Stretch) -> dict[str, object]:
    return {
        name: round(value, 4) if isinstance(value, float) else value
        for name, value in asdict(stretch).items()
    }


def _parse(argv: Sequence[str]) -> argparse.Namespace:
    parser = frame.trial_parser("loadtest.overload", __doc__)
    parser.add_argument("--url", default="", help="of a service of that config that runs")
    parser.add_argument("--first-rate", type=float, default=2.0, help="arrivals per second")
    parser.add_argument("--step", type=float, default=1.25, help="one rate / the one before")
    parser.add_argument("--factors", type=float, nargs="+", default=[1.0, 2.0, 3.0])
    parser.add_argument("--settle-s", type=float, default=20.0, help="of a stretch, not measured")
    # The chance error of n answers is sqrt(n), and the peak is the luckiest stretch of all.
    parser.add_argument("--measured-s", type=float, default=120.0, help="of a stretch")
    parser.add_argument(
        "--first-text-limit", type=float, default=10.0, help="seconds; later answers are not good"
    )
    parser.add_argument(
        "--refusal-limit", type=float, default=1.0, help="seconds, p99 of the time to a 429"
    )
    parser.add_argument("--goodput-loss", type=float, default=0.1, help="share of the peak")
    parser.add_argument(
        "--late-limit", type=float, default=0.25, help="seconds, p99 of how late the load is sent"
    )
    add_load_options(parser)
    arguments = parser.parse_args(argv)
    if arguments.step <= 1:
        parser.error(f"--step must be more than 1, got {arguments.step:g}")
    if arguments.first_rate <= 0:
        parser.error(f"--first-rate must be more than 0, got {arguments.first_rate:g}")
    return arguments


def main(argv: Sequence[str] | None = None) -> int:
    """Run it from the command line; the exit status."""
    return frame.run_trial("loadtest.overload", _parse, run, Report(), argv)


if __name__ == "__main__":
    sys.exit(main())
