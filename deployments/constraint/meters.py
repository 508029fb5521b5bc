"""Metrics of a replica of Constraint. Names begin with `outrider:`, vLLM has none for these."""

from __future__ import annotations

from dataclasses import asdict

from deployments.constraint.workers import ConstraintStats
from deployments.serve.instruments import LEASES, Meters, Totals


class ConstraintMeters:
    """The instruments of one replica of Constraint."""

    def __init__(self, meters: Meters) -> None:
        self._meters = meters
        self._leases = meters.gauge(*LEASES)
        self._queue = meters.gauge(
            "outrider:constraint_queue_length", "Requests to grammar processes without an answer"
        )
        plain = {
            "opens": meters.counter("outrider:grammars_opened", "Sessions that got a grammar"),
            "cache_hits": meters.counter(
                "outrider:grammar_cache_hits", "Of these, with a grammar compiled before"
            ),
            "loosened": meters.counter(
                "outrider:grammars_loosened",
                "Of these, with a grammar not all of which is enforced",
            ),
            "compile_s": meters.counter(
                "outrider:grammar_compile_seconds",
                "CPU time spent compiling grammars that are served",
            ),
            "refusals": meters.counter(
                "outrider:grammars_refused", "Grammars refused as the client's error"
            ),
            "restarts": meters.counter(
                "outrider:constraint_restarts", "Grammar processes that ended and were replaced"
            ),
            "rejected": meters.counter(
                "outrider:constraint_rejected", "Requests turned away: queue full, or restarting"
            ),
        }
        self._totals = Totals({key: (counter, {}) for key, counter in plain.items()})
        self.update(ConstraintStats(), 0)

    def update(self, stats: ConstraintStats, num_leases: int) -> None:
        """Take in the workers' counters and how many leases the replica has given."""
        self._leases.set(num_leases)
        self._queue.set(stats.queue_length)
        self._totals.follow(asdict(stats) | {"compile_s": stats.compile_ms_total / 1e3})

    def text(self) -> bytes:
        """Return all instruments in Prometheus' text format."""
        return self._meters.text()
