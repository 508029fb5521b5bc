"""Metrics of a replica of Target or Draft, and its reports to Serve for scaling.

Names are vLLM's if vLLM has one and it means the same here; other names begin with `outrider:`.
Only routers count requests (`ingress.metrics`), so that a sum over all processes counts each of
them once; engines count sessions.
"""

from __future__ import annotations

from dataclasses import dataclass

from deployments.engine.loop import LoopStats
from deployments.serve.instruments import LEASES, Meters
from deployments.serve.metrics import Metric, Table, counter, gauge
from models.engine.load import EngineLoad


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineStart:
    """The result of an engine's start."""

    batch_invariant: bool = False
    num_graphs: int = 0
    graph_bytes: int = 0


AT_START: tuple[Metric[EngineStart], ...] = (
    gauge(
        "outrider:cuda_graphs",
        "Graphs that passes are replayed from; 0: none, as on a CPU",
        lambda start: start.num_graphs,
    ),
    gauge(
        "outrider:cuda_graph_bytes",
        "Memory of the graphs, on the rank where it is most",
        lambda start: start.graph_bytes,
    ),
    gauge(
        "outrider:batch_invariant",
        "1: the self-test at start found the same bits for every way of batching",
        lambda start: start.batch_invariant,
    ),
)
METRICS: tuple[Metric[EngineLoad], ...] = (
    gauge(
        "vllm:kv_cache_usage_perc",
        "Share of the KV blocks that sessions hold; 1: all",
        lambda load: load.kv_use,
    ),
    gauge(
        "outrider:sessions_running",
        "Sessions being computed, which hold KV blocks",
        lambda load: load.num_running,
    ),
    gauge(
        "outrider:sessions_waiting",
        "Sessions that wait for KV blocks to be computed",
        lambda load: load.num_waiting,
    ),
    gauge(
        "outrider:waiting_tokens",
        "Prompt tokens that running and waiting sessions have ahead",
        lambda load: load.num_waiting_tokens,
    ),
    counter(
        "vllm:prefix_cache_queries",
        "Tokens looked for in the prefix cache",
        lambda load: load.prefix_queries,
    ),
    counter(
        "vllm:prefix_cache_hits",
        "Tokens found in the prefix cache",
        lambda load: load.prefix_hits,
    ),
    counter(
        "outrider:prefix_cache_evictions",
        "Blocks the prefix cache lost to others",
        lambda load: load.prefix_evictions,
    ),
    counter(
        "vllm:num_preemptions",
        "Times a session lost its KV blocks to others",
        lambda load: load.num_preemptions,
    ),
    counter("outrider:passes", "Forward passes", lambda load: load.num_passes),
    counter(
        "outrider:pass_seconds",
        "Time in forward passes: its rate is the busy share",
        lambda load: load.passes_s,
    ),
    counter(
        "outrider:pass_rows",
        "Rows (tokens) computed, by what for",
        lambda load: {("prefill",): load.num_prefill_rows, ("decode",): load.num_decode_rows},
        "purpose",
    ),
)


class EngineMeters:
    """The instruments of one replica of Target or Draft."""

    def __init__(self, meters: Meters) -> None:
        self.text = meters.text
        self._leases = meters.gauge(*LEASES)
        self._start = Table(meters, AT_START)
        self._load = Table(meters, METRICS)
        self.describe(EngineStart())
        self.update(EngineLoad(), 0)

    def update(self, load: EngineLoad, num_leases: int) -> None:
        """Take in a look at the engine and how many leases its replica has given."""
        self._leases.set(num_leases)
        self._load.follow(load)

    def begin_anew(self) -> None:
        """Count another model from 0."""
        self._load.begin_anew()

    def describe(self, start: EngineStart) -> None:
        """Take in what the engine came to at its start."""
        self._start.follow(start)


class EngineReport:
    """An engine replica's report to Serve for scaling; see `scaling` for the names.

    The busy share counts from one report to the next. So no pass is missed and none counts twice,
    however rarely Serve asks.
    """

    def __init__(self) -> None:
        self._stats: LoopStats | None = None
        self._reported: LoopStats | None = None
        self._busy = 0.0

    def note(self, stats: LoopStats) -> None:
        """Take in the leader's newest counters."""
        self._stats = stats
        if self._reported is None:
            self._reported = stats

    def take(self) -> dict[str, float]:
        """Return the present load and the busy share since the last report; empty at first."""
        stats, before = self._stats, self._reported
        if stats is None or before is None:
            return {}
        past_s = stats.looked_at_s - before.looked_at_s
        if past_s > 0.0:  # else the load was not looked at since: the last share holds
            self._busy = min(1.0, max(0.0, (stats.load.passes_s - before.load.passes_s) / past_s))
            self._reported = stats
        return {
            "kv_use": stats.load.kv_use,
            "waiting_tokens": float(stats.load.num_waiting_tokens),
            "busy": self._busy,
        }
