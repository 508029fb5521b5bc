"""Replicas follow a load that rises and falls, and no stream notices.

    python -m loadtest.scaling --output loadtest/results/scaling.json

Starts `serve run configs/demo.yaml` privately and takes down what every stream answers with one
replica of each kind. Then it serves the config again with an autoscaling_config for every
deployment (`scaling_config`). Limits and delays are small, so that a laptop reaches them within
minutes. Groups of streams come one after the other and leave again. The first group goes on until
every deployment is back at one replica. So replicas that leave have sessions to wait for. Every
request must complete with the text it had without scaling and valid JSON. Prints numbers of
replicas over time; the file holds every sample, with what the replicas themselves reported through
Ray's metrics. Ends with status 1 when a request failed or a deployment did not go up and come back.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from loadtest.client.answers import Answer
from loadtest.client.cases import Case, constrained_cases, free_cases
from loadtest.client.streams import FaultLoad
from loadtest.report.record import SAMPLES
from loadtest.scaling.replicas import Sample, Watch, changes, drained_sessions
from loadtest.service.served import Config, served
from loadtest.trial import frame
from loadtest.trial.watched import watched_service

_PERIOD_S = 1.0
_UP_LIMIT_S = 60.0  # for every deployment to have two replicas under all groups
_BACK_LIMIT_S = 120.0  # for the numbers to come back under the first group
_DRAIN_S = 120  # longest wait of a replica that leaves; longer than any answer here

# Serve's replicas and handles report their load every ten seconds otherwise, Ray's agents as well.
FAST_METRICS = {
    "RAY_SERVE_REPLICA_AUTOSCALING_METRIC_PUSH_INTERVAL_S": "1",
    "RAY_SERVE_HANDLE_AUTOSCALING_METRIC_PUSH_INTERVAL_S": "1",
    "RAY_SERVE_AUTOSCALING_METRIC_RECORD_INTERVAL_FACTOR": "0.1",
    "RAY_metrics_report_interval_ms": "1000",
}

_LIMITS: dict[str, dict[str, float]] = {
    "Target": {"kv_use": 0.4, "waiting_tokens": 400},
    "Draft": {"busy": 0.4},
    "Constraint": {"queue_length": 4, "sessions": 4},
}
_KV_CACHE_TOKENS = 4096


def scaling_config(config: Config) -> None:
    """Give every deployment of the demo an autoscaling_config from one to two replicas."""
    [application] = config["applications"]
    _same_cache(config)
    for deployment in application["deployments"]:
        name = deployment["name"]
        deployment.pop("num_replicas", None)
        deployment["graceful_shutdown_timeout_s"] = _DRAIN_S
        scaling: dict[str, Any] = {
            "min_replicas": 1,
            "max_replicas": 2,
            "look_back_period_s": 11,
            "upscale_delay_s": 3,
            "downscale_delay_s": 8,
        }
        if name == "Router":
            scaling["target_ongoing_requests"] = 10
        else:
            policy = f"deployments.scaling:{name}Policy"
            scaling["policy"] = {"policy_function": policy, "policy_kwargs": _LIMITS[name]}
        deployment["autoscaling_config"] = scaling


def _same_cache(config: Config) -> None:
    [application] = config["applications"]
    application["args"]["target"]["kv_cache_tokens"] = _KV_CACHE_TOKENS


@dataclass(kw_only=True)
class Report(frame.Report):
    """The results of a run so far; violations are failed requests and looks."""

    samples: list[Sample] = field(default_factory=list)
    is_back: bool = False

    @property
    def deployments(self) -> list[str]:
        """Those that were seen."""
        return sorted({name for sample in self.samples for name in sample.replicas})

    @property
    def problems(self) -> list[str]:
        """Failures, and deployments that did not go up and come back."""
        stayed = [f"{name} never had a second replica" for name in self.stayed]
        back = [] if self.is_back else ["the numbers of replicas did not come back"]
        return [*super().problems, *stayed, *back]

    @property
    def stayed(self) -> list[str]:
        """Deployments that never had a second replica."""
        return [
            name
            for name in self.deployments
            if max(sample.num_running(name) for sample in self.samples) < 2
        ]

    def content(self) -> dict[str, object]:
        """See `frame.Report`."""
        return {
            "limits": _LIMITS,
            "kv_cache_tokens": _KV_CACHE_TOKENS,
            "environment": FAST_METRICS,
            "is_clean": self.is_clean,
            "num_answers": self.num_answers,
            "crash": self.crash,
            "failures": self.violations,
            "replicas": self._changes(),
            "sessions_served_while_stopping": self._drained(),
            SAMPLES: [asdict(sample) for sample in self.samples],
        }

    def lines(self) -> Iterator[str]:
        """Replicas over time."""
        for name, steps in self._changes().items():
            yield f"{name}: " + ", ".join(f"{number} at {at_s:g} s" for at_s, number in steps)
        drained = ", ".join(f"{name} {number}" for name, number in self._drained().items())
        yield f"sessions served by replicas that were stopping, at least: {drained}"
        yield f"{self.num_answers} requests"

    def _changes(self) -> dict[str, list[tuple[float, int]]]:
        """Running replicas over time, by deployment."""
        return {name: changes(self.samples, name) for name in self.deployments}

    def _drained(self) -> dict[str, int]:
        """See `drained_sessions`."""
        return {name: drained_sessions(self.samples, name) for name in self.deployments}


def run(arguments: argparse.Namespace, report: Report) -> None:
    """Serve, let the load rise and fall, and watch."""
    cases = groups(arguments.groups)
    references = _references(arguments.config, cases)
    with watched_service(
        arguments.config, report, change=scaling_config, environment=FAST_METRICS
    ) as (_, watched):
        loads = [FaultLoad(watched.base_url, group) for group in cases]
        for load in loads:
            load.expect(references)
        running: list[FaultLoad] = []
        watch = Watch(_PERIOD_S, lambda: sum(load.num_streams for load in running))
        watch.start()
        try:
            report.is_back = _rise_and_fall(loads, running, arguments.stage, watch)
        finally:
            for load in running:
                load.stop()
            watch.stop()
            report.samples = watch.samples
            report.num_answers = sum(load.num_answers for load in loads)
            report.violations += [str(late) for load in loads for late in load.take_failures()]
            report.violations += watch.errors


def groups(num_groups: int) -> list[list[Case]]:
    """Return the streams that come and leave together: three free ones, three with a schema.

    The first group, which stays, is smaller and does not draft: one replica of each kind is enough.
    A draft on the same cores is as busy with one stream as with fifteen, because those share its
    passes. It is busy for half of the time.
    """
    free, constrained = free_cases(3 * num_groups), constrained_cases(3 * num_groups)
    plain = {"speculation": {"enabled": False}}
    first = [replace(case, body=case.body | plain) for case in (*free[:2], constrained[0])]
    rest = [free[3 * i : 3 * i + 3] + constrained[3 * i : 3 * i + 3] for i in range(1, num_groups)]
    return [first, *rest]


def _references(config: Path, cases: Sequence[Sequence[Case]]) -> dict[str, Answer]:
    """Return every case's answer without scaling."""
    found: dict[str, Answer] = {}
    with served(config, change=_same_cache) as service:
        for group in cases:
            found |= FaultLoad(service.base_url, group).collect_references()
    return found


def _rise_and_fall(
    loads: Sequence[FaultLoad], running: list[FaultLoad], stage_s: float, watch: Watch
) -> bool:
    """Start group after group and end them again; whether the replicas came back to one each."""
    for load in loads:
        load.start()
        running.append(load)
        _say(watch, "a group comes")
        time.sleep(stage_s)
    watch.wait(lambda sample: _has_all_at(sample, 2), _UP_LIMIT_S)
    while len(running) > 1:
        _say(watch, "a group leaves")
        running[-1].stop()
        running.pop()
    _say(watch, "the first group is left")
    is_back = watch.wait(lambda sample: sample.is_settled_at(1), _BACK_LIMIT_S)
    _say(watch, "back at one replica each" if is_back else "the numbers did not come back")
    return is_back


def _has_all_at(sample: Sample, num_replicas: int) -> bool:
    return all(sample.num_running(name) >= num_replicas for name in sample.replicas)


def _say(watch: Watch, what: str) -> None:
    if watch.samples:
        last = watch.samples[-1]
        numbers = ", ".join(f"{name} {last.num_running(name)}" for name in last.replicas)
        print(f"{last.at_s:6.1f} s: {what} ({last.num_streams} streams; {numbers})", flush=True)


def _parse(argv: Sequence[str]) -> argparse.Namespace:
    parser = frame.trial_parser("loadtest.scaling", __doc__)
    parser.add_argument(
        "--groups", type=int, default=3, help="of six streams each, the first of three"
    )
    parser.add_argument("--stage", type=float, default=15.0, help="seconds from group to group")
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> int:
    """Run from the command line; the exit status."""
    return frame.run_trial("loadtest.scaling", _parse, run, Report(), argv)


if __name__ == "__main__":
    sys.exit(main())
