"""Kills and stops processes of a served demo, under streams that must not notice.

    python -m loadtest.faults --rounds 20 --output loadtest/results/faults.json

Starts `serve run configs/demo.yaml` privately, takes down what 8 free and 8 constrained streams
answer undisturbed, then strikes: SIGKILL and SIGSTOP to every kind of process but the HTTP proxy
and the router, `--rounds` times each, at random moments (not to Ray's own, raylet and GCS: without
them there is no node). Every request must complete with the same text and valid JSON; afterwards
nothing may be held and no process left over. Prints how long streams paused and how long it took
until the service was whole. Details of failures go to the log beside `--output`. Ends with status
1 when anything failed. `--kinds proxy router` shows what clients see when their own end dies.
"""

from __future__ import annotations

import argparse
import logging
import random
import sys
from collections.abc import Sequence
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
from loadtest.report.machine import ROOT
from loadtest.report.record import crash_noted, head, write_json
from loadtest.service.parts import (
    EDGE_KINDS,
    HIDDEN_KINDS,
    KINDS,
    FaultService,
    fault_config,
    wait_gone,
)
from loadtest.service.served import served

logger = logging.getLogger("faults")

_CALM_S = 5.0  # the load runs this long before the first fault, for comparison
_FREED_LIMIT_S = 30.0
_IDLE_LIMIT_S = 180.0  # a dead router gives nothing back: its leases end by their idle time-out
_GONE_LIMIT_S = 20.0
_STEADY_LIMIT_S = 60.0


@dataclass
class Report:
    """What a campaign has found so far. Written whatever ends it."""

    calm_s: dict[str, float] = field(default_factory=dict)  # longest waits before the first fault
    outcomes: list[Outcome] = field(default_factory=list)
    leftovers: list[str] = field(default_factory=list)  # held or running at the end, late failures
    num_answers: int = 0
    crash: str = ""

    @property
    def is_clean(self) -> bool:
        """Whether everything held that had to."""
        failed = [o for o in self.outcomes if o.problems and not o.is_expected]
        return not failed and not self.leftovers and not self.crash


def run_campaign(arguments: argparse.Namespace, report: Report) -> None:
    """Serve, load, strike, and look at what is left."""

    def keeps_folder() -> bool:
        return arguments.keep_logs or not report.is_clean

    change = fault_config(arguments.replicas, arguments.patience)
    with (
        served(arguments.config, change=change, keeps_folder=keeps_folder) as service,
        crash_noted(report),  # before the folder is kept or not
    ):
        logger.info("the service and its logs are in %s", service.folder)
        folder = service.folder
        with FaultService(service) as watched:
            watched.check_kinds(arguments.kinds)
            try:
                _strike(arguments, watched, report)
            except RuntimeError as error:
                report.crash = str(error)
                logger.exception("the campaign ends early")
            else:
                has_lost_routers = not set(EDGE_KINDS).isdisjoint(arguments.kinds)
                limit_s = _IDLE_LIMIT_S if has_lost_routers else _FREED_LIMIT_S
                report.leftovers += watched.wait_freed(limit_s)
    report.leftovers += [f"left over: {process}" for process in wait_gone(folder, _GONE_LIMIT_S)]
    if not report.is_clean:
        logger.error("something failed; if it was the service, its logs are kept in %s", folder)


def _strike(arguments: argparse.Namespace, watched: FaultService, report: Report) -> None:
    rng = random.Random(arguments.seed)
    cases = [*free_cases(arguments.streams), *constrained_cases(arguments.streams)]
    load = FaultLoad(watched.base_url, cases)
    load.collect_references()
    load.start()
    try:
        report.calm_s = load.measure_calm(_CALM_S, _STEADY_LIMIT_S)
        faults = plan(arguments.rounds, arguments.kinds, arguments.signals, rng)
        for outcome in Campaign(watched, load, rng).run(faults):
            report.outcomes.append(outcome)
            print(f"[{len(report.outcomes)}/{len(faults)}] {outcome.line()}", flush=True)
    finally:
        load.stop()
        report.num_answers = load.num_answers
        report.leftovers += [f"after the last fault: {late}" for late in load.take_failures()]


def _write(arguments: argparse.Namespace, report: Report, words: Sequence[str]) -> None:
    content = head("loadtest.faults", words, arguments) | {
        "is_clean": report.is_clean,
        "num_answers": report.num_answers,
        "longest_wait_without_faults_s": report.calm_s,
        "crash": report.crash,
        "leftovers": report.leftovers,
        "summary": [asdict(line) for line in summarise(report.outcomes)],
        "faults": [as_json(outcome) for outcome in report.outcomes],
    }
    write_json(arguments.output, content)


def _print(report: Report) -> None:
    print(f"\npauses and recovery, median / longest of each kind; {report.num_answers} requests")
    print(table(summarise(report.outcomes)))
    if report.calm_s:
        waits = ", ".join(f"{name} {wait_s:.1f} s" for name, wait_s in report.calm_s.items())
        print(f"longest wait of a stream without any fault: {waits}")
    for leftover in report.leftovers:
        print(f"FAILURE: {leftover}")
    if report.crash:
        print(f"FAILURE: {report.crash}")
    print(f"result: {_verdict(report)}")


def _verdict(report: Report) -> str:
    if not report.is_clean:
        return "something failed, see the log"
    num_cut = sum(len(outcome.problems) for outcome in report.outcomes)
    exceptions = f" but {num_cut} whose own end was struck" if num_cut else ""
    return f"every request{exceptions} completed with its text, everything was freed"


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
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("--config", type=Path, default=ROOT / "configs" / "demo.yaml")
    parser.add_argument("--rounds", type=int, default=1, help="faults of each kind and signal")
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=list(HIDDEN_KINDS))
    parser.add_argument("--signals", nargs="+", choices=list(SIGNALS), default=list(SIGNALS))
    parser.add_argument("--streams", type=int, default=8, help="free ones, and as many constrained")
    parser.add_argument("--replicas", type=int, default=1, help="of Target and of Constraint")
    parser.add_argument(
        "--patience",
        type=float,
        default=120.0,
        help="seconds a request may wait for a replica (queue_wait_s and failover_s)",
    )
    parser.add_argument("--keep-logs", action="store_true", help="also when nothing failed")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--output", type=Path, help="JSON file for the results; the log beside it")
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> int:
    """Run a campaign from the command line; the exit status."""
    words = sys.argv[1:] if argv is None else list(argv)
    arguments = _parse(words)
    _log_to(arguments.output.with_suffix(".log") if arguments.output else None)
    report = Report()
    try:
        with crash_noted(report):
            run_campaign(arguments, report)
    finally:
        _print(report)
        if arguments.output is not None:
            _write(arguments, report, words)
    return 0 if report.is_clean else 1


if __name__ == "__main__":
    sys.exit(main())
