"""Metrics of a replica of Target or Draft, and its reports to Serve for scaling.

Names are vLLM's if vLLM has one and it means the same here; other names begin with `outrider:`.
Only routers count requests (`ingress.metrics`), so that a sum over all processes counts each of
them once; engines count sessions.
"""

from __future__ import annotations

from dataclasses import asdict

from deployments.engine.loop import LoopStats
from deployments.serve.instruments import LEASES, Meters, Totals
from models.engine.load import EngineLoad


class EngineMeters:
    """The instruments of one replica of Target or Draft."""

    def __init__(self, meters: Meters) -> None:
        self._meters = meters
        self._leases = meters.gauge(*LEASES)
        self._kv_use = meters.gauge(
            "vllm:kv_cache_usage_perc", "Share of the KV blocks that sessions hold; 1: all"
        )
        self._running = meters.gauge(
            "outrider:sessions_running", "Sessions being computed, which hold KV blocks"
        )
        self._waiting = meters.gauge(
            "outrider:sessions_waiting", "Sessions that wait for KV blocks to be computed"
        )
        self._waiting_tokens = meters.gauge(
            "outrider:waiting_tokens", "Prompt tokens that running and waiting sessions have ahead"
        )
        self._graphs = meters.gauge(
            "outrider:cuda_graphs", "Graphs that passes are replayed from; 0: none, as on a CPU"
        )
        self._graph_bytes = meters.gauge(
            "outrider:cuda_graph_bytes", "Memory of these graphs, on the rank where it is most"
        )
        self._batch_invariant = meters.gauge(
            "outrider:batch_invariant",
            "1: the self-test at start found the same bits for every way of batching",
        )
        rows = meters.counter(
            "outrider:pass_rows", "Rows (tokens) computed, by what for", ["purpose"]
        )
        plain = {
            "prefix_queries": meters.counter(
                "vllm:prefix_cache_queries", "Tokens looked for in the prefix cache"
            ),
            "prefix_hits": meters.counter(
                "vllm:prefix_cache_hits", "Tokens found in the prefix cache"
            ),
            "prefix_evictions": meters.counter(
                "outrider:prefix_cache_evictions", "Blocks the prefix cache lost to others"
            ),
            "num_preemptions": meters.counter(
                "vllm:num_preemptions", "Times a session lost its KV blocks to others"
            ),
            "num_passes": meters.counter("outrider:passes", "Forward passes"),
            "passes_s": meters.counter(
                "outrider:pass_seconds", "Time in forward passes: its rate is the busy share"
            ),
        }
        self._totals = Totals(
            {key: (counter, {}) for key, counter in plain.items()}
            | {
                "num_prefill_rows": (rows, {"purpose": "prefill"}),
                "num_decode_rows": (rows, {"purpose": "decode"}),
            }
        )
        self.update(EngineLoad(), 0)

    def update(self, load: EngineLoad, num_leases: int) -> None:
        """Take in a look at the engine and how many leases its replica has given."""
        self._leases.set(num_leases)
        self._kv_use.set(load.kv_use)
        self._running.set(load.num_running)
        self._waiting.set(load.num_waiting)
        self._waiting_tokens.set(load.num_waiting_tokens)
        self._totals.follow(asdict(load))

    def begin_anew(self) -> None:
        """Count another model from 0."""
        self._totals.begin_anew()

    def describe(self, *, batch_invariant: bool, num_graphs: int, graph_bytes: int) -> None:
        """Take in what the engine came to at its start."""
        self._batch_invariant.set(float(batch_invariant))
        self._graphs.set(num_graphs)
        self._graph_bytes.set(graph_bytes)

    def text(self) -> bytes:
        """Return all instruments in Prometheus' text format."""
        return self._meters.text()


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
