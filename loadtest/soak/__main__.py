"""Keeps a service saturated for a while and looks whether it stays as it is.

    python -m loadtest.soak --minutes 20 --output loadtest/results/soak.json

Starts `serve run` of a config (`--config`, the demo's by default) privately, or attaches to one
that runs here (`--url`). The users of `client.workload` keep every place taken: chats, JSON
records, a shared long prompt, readers who leave, bad requests. It samples the memory of every
process, the queues and the KV cache. Fails unless memory stays within 3% after the warm-up in every
process of ours and in all of ours together. Every request must get the required answer, and no
queue may exceed its limit. Nothing may be held or left running at the end. Writes a JSON file and a
figure next to it. Ends with status 1 when something failed.
"""

from __future__ import annotations

import argparse
import contextlib
import sys
import time
from collections.abc import Iterator, Sequence
from typing import Any

import yaml
from tqdm import tqdm

from deployments.config.schema import AppConfig
from loadtest.client.options import add_load_options, workload_of
from loadtest.service.attached import attach
from loadtest.service.gauges import RUNNING, WAITING, GaugeWatch, limits
from loadtest.service.memory import MemoryWatch
from loadtest.service.parts import FaultService, Watchable
from loadtest.soak.checks import check_bounds, check_memory, saturation
from loadtest.soak.load import SoakLoad, Tally
from loadtest.soak.record import Report
from loadtest.trial import frame
from loadtest.trial.watched import watched_service

_NUM_SAMPLES = 300
_LEAST_PERIOD_S = 1.0
_REPLICAS_EVERY = 4  # samples; between two of them replicas are not asked
_LEAST_SATURATION = 0.9  # part of all samples after the warm-up
_FREED_LIMIT_S = 30.0
_POLL_S = 0.5


def run(arguments: argparse.Namespace, report: Report) -> None:
    """Serve, load, watch, and look at what is left."""
    config = yaml.safe_load(arguments.config.read_text(encoding="utf-8"))
    report.warm_up_s, report.limit = 60.0 * _warm_up(arguments), arguments.limit
    with _service(arguments, report) as (service, watched):
        memory = MemoryWatch(watched.parts, service.processes)
        gauges = GaugeWatch(service.base_url, watched.stats)
        load = _load(arguments, service.base_url, config)
        load.start()
        try:
            report.length_s = _watch(arguments, memory, gauges, load.tally)
        finally:
            load.stop()
            report.tally = load.tally
            report.load_cpu_share = load.cpu_s / max(report.length_s, 1e-9)
        _check(arguments, config, report, memory, gauges)
        report.violations += watched.wait_freed(_FREED_LIMIT_S)
        report.violations += _not_idle(gauges, report.length_s)
        report.violations += gauges.complaints


def _not_idle(gauges: GaugeWatch, at_s: float) -> list[str]:
    """Return the gauges that still show running or waiting requests.

    A page of metrics may be a second old, so it is read again until the limit.
    """
    deadline = time.monotonic() + _FREED_LIMIT_S
    while True:
        idle = gauges.sample(at_s)
        found = [
            f"{name} is {idle[name]:g} after the end"
            for name in (RUNNING, WAITING)
            if idle.get(name)
        ]
        if not found or time.monotonic() > deadline:
            return found
        time.sleep(_POLL_S)


@contextlib.contextmanager
def _service(
    arguments: argparse.Namespace, report: Report
) -> Iterator[tuple[Watchable, FaultService]]:
    """Yield the service at --url, or one of this command's own, whose log must have no errors."""
    if arguments.url:
        attached = attach(arguments.url)
        with FaultService(attached) as watched:
            yield attached, watched
        return
    with watched_service(arguments.config, report) as (service, watched):
        yield service, watched
        errors = [line for line in service.log().splitlines() if " ERROR " in line]
        report.violations += [f"in the log: {line[:300]}" for line in errors[:10]]


def _load(arguments: argparse.Namespace, base_url: str, config: dict[str, Any]) -> SoakLoad:
    return SoakLoad(
        base_url,
        workload_of(arguments, config),
        num_users=_num_users(arguments, config),
        seed=arguments.seed,
        expects_same_text=not arguments.any_text,
    )


def capacity(config: dict[str, Any]) -> int:
    """Sessions that all routers of a config run at once."""
    [application] = config["applications"]
    deployments = application.get("deployments", [])
    replicas = {d["name"]: d.get("num_replicas", 1) for d in deployments}
    router = AppConfig.model_validate(application["args"]).router
    return router.max_sessions * int(replicas.get("Router", 1))


def _num_users(arguments: argparse.Namespace, config: dict[str, Any]) -> int:
    places = capacity(config)
    return int(arguments.users or 2 * places)


def _watch(
    arguments: argparse.Namespace, memory: MemoryWatch, gauges: GaugeWatch, tally: Tally
) -> float:
    """Sample until the time is over; seconds that took."""
    length_s = 60.0 * arguments.minutes
    period_s = _period_s(length_s)
    began_s = time.monotonic()
    with tqdm(total=round(length_s), desc="soak", unit="s") as bar:
        while (at_s := time.monotonic() - began_s) < length_s:
            num_bytes = memory.sample(at_s)
            full = gauges.sample(at_s, asks_replicas=len(gauges.at_s) % _REPLICAS_EVERY == 0)
            bar.set_postfix_str(
                f"{num_bytes / (1 << 20):.0f} MiB, {full.get(RUNNING, 0):.0f} running, "
                f"{full.get(WAITING, 0):.0f} waiting, {tally.ended.total()} ended, "
                f"{tally.turned_away.total()} turned away, {tally.failed.total()} failed"
            )
            bar.update(round(at_s) - bar.n)
            spent_s = time.monotonic() - began_s - at_s
            time.sleep(max(0.0, min(period_s - spent_s, length_s - at_s)))
        bar.update(bar.total - bar.n)
    return time.monotonic() - began_s


def _period_s(length_s: float) -> float:
    return max(_LEAST_PERIOD_S, length_s / _NUM_SAMPLES)


def _check(
    arguments: argparse.Namespace,
    config: dict[str, Any],
    report: Report,
    memory: MemoryWatch,
    gauges: GaugeWatch,
) -> None:
    """Check the time under load, the warm-up left out."""
    from_s = report.warm_up_s
    report.memory = check_memory(memory.series, from_s=from_s, limit=arguments.limit)
    report.gauge_at_s, report.gauges = gauges.at_s, gauges.values
    running = report.gauges.get(RUNNING, [])
    warm = [v for t, v in zip(report.gauge_at_s, running, strict=False) if t >= from_s]
    places = limits(config)[RUNNING]  # limit of the one router that answered /metrics
    report.saturation = saturation(warm, min(places, _num_users(arguments, config)))
    report.violations += [
        f"memory of {check.series.kind} {check.series.pid}: {check.complaint}"
        for check in report.memory
        if check.complaint and check.series.is_ours
    ]
    report.violations += check_bounds(report.gauges, limits(config))
    if report.saturation < _LEAST_SATURATION:
        report.violations.append(
            f"the load filled the places in {report.saturation:.0%} of samples only, "
            f"at least {_LEAST_SATURATION:.0%} are wanted: more --users"
        )
    num_failed = report.tally.failed.total()
    if num_failed:
        report.violations.append(f"{num_failed} requests failed, at first {_first(report.tally)}")


def _first(tally: Tally) -> str:
    return "; ".join(tally.complaints[:3])


def _warm_up(arguments: argparse.Namespace) -> float:
    """Minutes."""
    given = arguments.warm_up
    return float(arguments.minutes / 4 if given is None else given)


def _parse(argv: Sequence[str]) -> argparse.Namespace:
    parser = frame.trial_parser("loadtest.soak", __doc__)
    parser.add_argument("--url", default="", help="of a service of that config that runs here")
    parser.add_argument("--minutes", type=float, default=20.0, help="length of the load")
    parser.add_argument("--warm-up", type=float, help="minutes not checked; default: a quarter")
    parser.add_argument("--limit", type=float, default=0.03, help="growth allowed, as a share")
    parser.add_argument("--users", type=int, default=0, help="default: 2 per place")
    add_load_options(parser)
    arguments = parser.parse_args(argv)
    if not 0 <= _warm_up(arguments) < arguments.minutes:
        parser.error(f"--warm-up must be less than --minutes, {arguments.minutes:g}")
    return arguments


def main(argv: Sequence[str] | None = None) -> int:
    """Run a soak from the command line; the exit status."""
    return frame.run_trial("loadtest.soak", _parse, run, Report(), argv)


if __name__ == "__main__":
    sys.exit(main())
