"""Metrics of a replica of Constraint. Names begin with `outrider:`, vLLM has none for these."""

from __future__ import annotations

from deployments.constraint.workers import ConstraintStats
from deployments.serve.instruments import LEASES, Meters
from deployments.serve.metrics import Metric, Table, counter, gauge

METRICS: tuple[Metric[ConstraintStats], ...] = (
    gauge(
        "outrider:constraint_queue_length",
        "Requests to grammar processes without an answer",
        lambda stats: stats.queue_length,
    ),
    counter("outrider:grammars_opened", "Sessions that got a grammar", lambda stats: stats.opens),
    counter(
        "outrider:grammar_cache_hits",
        "Sessions whose grammar was compiled before",
        lambda stats: stats.cache_hits,
    ),
    counter(
        "outrider:grammars_loosened",
        "Sessions whose grammar is not enforced as a whole",
        lambda stats: stats.loosened,
    ),
    counter(
        "outrider:grammar_compile_seconds",
        "CPU time spent compiling grammars that are served",
        lambda stats: stats.compile_ms_total / 1e3,
    ),
    counter(
        "outrider:grammars_refused",
        "Grammars refused as the client's error",
        lambda stats: stats.refusals,
    ),
    counter(
        "outrider:constraint_restarts",
        "Grammar processes that ended and were replaced",
        lambda stats: stats.restarts,
    ),
    counter(
        "outrider:constraint_rejected",
        "Requests turned away: queue full, or restarting",
        lambda stats: stats.rejected,
    ),
)


class ConstraintMeters:
    """The instruments of one replica of Constraint."""

    def __init__(self, meters: Meters) -> None:
        self.text = meters.text
        self._leases = meters.gauge(*LEASES)
        self._table = Table(meters, METRICS)
        self.update(ConstraintStats(), 0)

    def update(self, stats: ConstraintStats, num_leases: int) -> None:
        """Take in the workers' counters and how many leases the replica has given."""
        self._leases.set(num_leases)
        self._table.follow(stats)
