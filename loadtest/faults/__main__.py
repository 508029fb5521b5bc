"""Kills and stops processes of a served demo, under streams that must not notice.

    python -m loadtest.faults --rounds 20 --output loadtest/results/faults.json

Starts `serve run configs/demo.yaml` privately, as it is shipped. It notes the answers of 8 free and
8 constrained streams undisturbed, then strikes. SIGKILL and SIGSTOP go to every kind of process but
the HTTP proxy and the router. Each strikes `--rounds` times, at random moments. Ray's raylet and
GCS are spared, because without them there is no node. Every request must complete with the same
text and valid JSON. A refusal with 429 or 503 before it begins is allowed. These are counted apart:
nobody stands in for the only target while it loads again. Afterwards nothing may be held and no
process left over. Prints how long streams paused and how long it took until the service was whole.
Details of failures go to the log next to `--output`. Ends with status 1 when anything failed.
`--kinds proxy router` shows what clients see when their own end dies.
"""

from __future__ import annotations

import argparse
import logging
import random
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from loadtest.client.cases import constrained_cases, free_cases
from loadtest.client.streams import FaultLoad
from loadtest.faults.campaign import (
    SIGNALS,
    Campaign,
    Outcome,
    as_json,
    plan,
    summarise,
    table,
)
from loadtest.service.parts import EDGE_KINDS, HIDDEN_KINDS, KINDS, FaultService, with_replicas
from loadtest.trial import frame
from loadtest.trial.watched import streams_running, watched_service

logger = logging.getLogger("faults")

_CALM_S = 5.0  # the load runs this long before the first fault, for comparison
_FREED_LIMIT_S = 30.0
_IDLE_LIMIT_S = 180.0  # a dead router gives nothing back: its leases end by their idle time-out
_STEADY_LIMIT_S = 60.0


@dataclass(kw_only=True)
class Report(frame.Report):
    """The results so far; violations are requests held or running at the end, or late."""

    calm_s: dict[str, float] = field(default_factory=dict)  # longest waits before the first fault
    outcomes: list[Outcome] = field(default_factory=list)

    @property
    def problems(self) -> list[str]:
        """Failures of requests whose own end was not struck, and what is left at the end."""
        failed = [o for o in self.outcomes if o.problems and not o.is_expected]
        return [
            f"{o.fault}: {problem}" for o in failed for problem in o.problems
        ] + super().problems

    def content(self) -> dict[str, object]:
        """See `frame.Report`."""
        return {
            "is_clean": self.is_clean,
            "num_answers": self.num_answers,
            "num_refused": sum(outcome.num_refused for outcome in self.outcomes),
            "longest_wait_without_faults_s": self.calm_s,
            "crash": self.crash,
            "leftovers": self.violations,
            "summary": [asdict(line) for line in summarise(self.outcomes)],
            "faults": [as_json(outcome) for outcome in self.outcomes],
        }

    def lines(self) -> Iterator[str]:
        """Pauses and recovery by kind."""
        yield f"\npauses and recovery, median / longest of each kind; {self.num_answers} requests"
        yield table(summarise(self.outcomes))
        if num_refused := sum(outcome.num_refused for outcome in self.outcomes):
            yield f"{num_refused} requests were refused with 429 or 503, and asked again"
        if self.calm_s:
            waits = ", ".join(f"{name} {wait_s:.1f} s" for name, wait_s in self.calm_s.items())
            yield f"longest wait of a stream without any fault: {waits}"
        if num_cut := sum(len(o.problems) for o in self.outcomes if o.is_expected):
            yield f"{num_cut} requests were cut whose own end was struck, as expected"


def run(arguments: argparse.Namespace, report: Report) -> None:
    """Serve, load, strike, and look at what is left."""
    _log_to(arguments.output.with_suffix(".log") if arguments.output else None)
    change = with_replicas(arguments.replicas) if arguments.replicas else None
    with watched_service(
        arguments.config, report, change=change, keeps_logs=arguments.keep_logs
    ) as (service, watched):
        logger.info("the service and its logs are in %s", service.folder)
        watched.check_kinds(arguments.kinds)
        _strike(arguments, watched, report)
        has_lost_routers = not set(EDGE_KINDS).isdisjoint(arguments.kinds)
        limit_s = _IDLE_LIMIT_S if has_lost_routers else _FREED_LIMIT_S
        report.violations += watched.wait_freed(limit_s)


def _strike(arguments: argparse.Namespace, watched: FaultService, report: Report) -> None:
    rng = random.Random(arguments.seed)
    cases = [*free_cases(arguments.streams), *constrained_cases(arguments.streams)]
    load = FaultLoad(watched.base_url, cases)
    with streams_running(load, report):
        report.calm_s = load.measure_calm(_CALM_S, _STEADY_LIMIT_S)
        faults = plan(arguments.rounds, arguments.kinds, arguments.signals, rng)
        for outcome in Campaign(watched, load, rng).run(faults):
            report.outcomes.append(outcome)
            print(f"[{len(report.outcomes)}/{len(faults)}] {outcome.line()}", flush=True)


def _log_to(path: Path | None) -> None:
    handlers: list[logging.Handler] = []
    if path is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
        handlers.append(logging.FileHandler(path, mode="w", encoding="utf-8"))
    else:
        handlers.append(logging.StreamHandler())
    for handler in handlers:
        handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
        logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    logger.propagate = False


def _parse(argv: Sequence[str]) -> argparse.Namespace:
    parser = frame.trial_parser("loadtest.faults", __doc__)
    parser.add_argument("--rounds", type=int, default=1, help="faults of each kind and signal")
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=list(HIDDEN_KINDS))
    parser.add_argument("--signals", nargs="+", choices=list(SIGNALS), default=list(SIGNALS))
    parser.add_argument("--streams", type=int, default=8, help="free ones, and as many constrained")
    parser.add_argument(
        "--replicas", type=int, default=0, help="of Target and of Constraint; 0: as the config has"
    )
    parser.add_argument("--keep-logs", action="store_true", help="also when nothing failed")
    parser.add_argument("--seed", type=int, default=0)
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> int:
    """Run a campaign from the command line; the exit status."""
    return frame.run_trial("loadtest.faults", _parse, run, Report(), argv)


if __name__ == "__main__":
    sys.exit(main())
