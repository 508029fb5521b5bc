"""Reads how full a service is, again and again: GET /metrics, and each replica's own counters.

Names are those of /metrics (`vllm:num_requests_waiting`), and for counters of replicas
`Target.num_sessions`, of which the fullest replica's is taken.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import httpx
from prometheus_client.parser import text_string_to_metric_families

from deployments.config.applications import applications_of

RUNNING = "vllm:num_requests_running"
WAITING = "vllm:num_requests_waiting"
_TIMEOUT_S = 20.0
_GAUGE = re.compile(r"^# TYPE (\S+) gauge$", re.MULTILINE)
_NAME = re.compile(r"[{ ]")  # the end of a sample's name
_KEPT = ("num_sessions", "num_leases", "num_used_blocks", "queue_length")

Stats = Mapping[str, Sequence[Mapping[str, float]]]


class GaugeWatch:
    """Samples since the start.

    Args:
        base_url: of the service.
        stats: counters of all replicas, by deployment; raises what it likes when there are none.
    """

    def __init__(self, base_url: str, stats: Callable[[], Stats]) -> None:
        self._url = f"{base_url}/metrics"
        self._stats = stats
        self.at_s: list[float] = []
        self.values: dict[str, list[float]] = {}
        self.complaints: list[str] = []

    def sample(self, at_s: float, *, asks_replicas: bool = True) -> dict[str, float]:
        """Read all of them once; what could not be read is a complaint.

        Asking replicas goes through Ray and takes a second or two of a busy service. Their counters
        stay as they were if they are not asked.
        """
        sources = [("GET /metrics", self._scrape)]
        if asks_replicas:
            sources.append(("counters", self._counters))
        read: dict[str, float] = {}
        for what, source in sources:
            try:
                read |= source()
            except Exception as error:  # noqa: BLE001  # a service that cannot be watched has failed
                self.complaints.append(f"{what} at {at_s:.0f} s: {type(error).__name__}: {error}")
        self.at_s.append(at_s)
        for name in self.values.keys() | read.keys():
            known = self.values.setdefault(name, [0.0] * (len(self.at_s) - 1))
            known.append(read.get(name, known[-1] if known else 0.0))
        return read

    def _scrape(self) -> dict[str, float]:
        response = httpx.get(self._url, timeout=_TIMEOUT_S)
        response.raise_for_status()
        return gauges(response.text)

    def _counters(self) -> dict[str, float]:
        return {
            f"{name}.{key}": max(float(replica[key]) for replica in replicas)
            for name, replicas in self._stats().items()
            for key in _KEPT
            if replicas and key in replicas[0]
        }


def gauges(text: str) -> dict[str, float]:
    """Return the gauges of an exposition; several label values count with their sum.

    Other lines are not parsed. A page has more than a thousand. A load whose event loop parsed them
    all would send its requests late.
    """
    found: dict[str, float] = {}
    names = {name for name in _GAUGE.findall(text) if not name.endswith("_created")}
    lines = [line for line in text.splitlines() if _NAME.split(line, maxsplit=1)[0] in names]
    for family in text_string_to_metric_families("\n".join(lines)):
        for sample in family.samples:
            found[family.name] = found.get(family.name, 0.0) + sample.value
    return found


def limits(config: Mapping[str, Any]) -> dict[str, float]:
    """Return the limits of the gauges from a parsed Serve config file."""
    args = applications_of(config).config
    found: dict[str, float] = {
        RUNNING: args.router.max_sessions,
        WAITING: args.router.max_queued_sessions,
        "Target.num_sessions": args.target.max_num_seqs,
        "Target.num_leases": args.target.max_num_seqs,
        "Constraint.num_leases": args.constraint.max_sessions,
    }
    if args.draft is not None:
        found |= {
            "Draft.num_sessions": args.draft.max_num_seqs,
            "Draft.num_leases": args.draft.max_num_seqs,
        }
    return found


def capacity(config: Mapping[str, Any]) -> int:
    """Return the sessions that all routers of a config run at once."""
    service = applications_of(config)
    replicas = {d["name"]: d.get("num_replicas", 1) for d in service.overrides}
    return service.config.router.max_sessions * int(replicas.get("Router", 1))


def queues(base_url: str) -> dict[str, float]:
    """Return the router's sessions, by GET /metrics."""
    response = httpx.get(f"{base_url}/metrics", timeout=_TIMEOUT_S)
    found = gauges(response.raise_for_status().text)
    return {"running": found[RUNNING], "waiting": found[WAITING]}
