"""Numbers of replicas over time and what each replica says of its load, seen from outside.

Replicas by state come from Serve's status. Their load comes from Ray's metrics of the node, read
like Prometheus does. Call within `service.parts.FaultService`, which connects to the cluster.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import httpx
import ray
from prometheus_client.parser import text_string_to_metric_families
from ray import serve

_MEASURES = {
    "ray_vllm_kv_cache_usage_perc": "kv_use",
    "ray_outrider_waiting_tokens": "waiting_tokens",
    "ray_outrider_sessions_running": "running",
    "ray_outrider_pass_seconds_total": "pass_s",
    "ray_outrider_constraint_queue_length": "queue_length",
    "ray_outrider_leases": "leases",
}
_HTTP_TIMEOUT_S = 5.0


@dataclass(frozen=True)
class Sample:
    """One look.

    `load` has a line per replica that has reported: its deployment, its id, its measures. A replica
    that is draining or has just gone is still in it.
    """

    at_s: float  # since the watch began
    num_streams: int
    replicas: dict[str, dict[str, int]]  # deployment -> state -> number
    load: list[dict[str, str | float]]

    def num_running(self, deployment: str) -> int:
        """Replicas that take new sessions."""
        return self.replicas.get(deployment, {}).get("RUNNING", 0)

    def is_settled_at(self, num_replicas: int) -> bool:
        """Return whether every deployment has so many replicas, and none starts or stops."""
        return all(states == {"RUNNING": num_replicas} for states in self.replicas.values())


def look_at_replicas(num_streams: Callable[[], int] = int) -> Callable[[float], Sample]:
    """Return what takes a sample, at the seconds that it is given; for a `Watch`."""
    port = metrics_port()

    def look(at_s: float) -> Sample:
        replicas = {
            name: {
                getattr(state, "value", str(state)): count
                for state, count in d.replica_states.items()
            }
            for application in serve.status().applications.values()
            for name, d in application.deployments.items()
        }
        text = httpx.get(f"http://127.0.0.1:{port}/metrics", timeout=_HTTP_TIMEOUT_S).text
        return Sample(
            at_s=round(at_s, 1),
            num_streams=num_streams(),
            replicas=replicas,
            load=replica_loads(text),
        )

    return look


def metrics_port() -> int:
    """Return the port at which the node's agent exports metrics."""
    [node] = [node for node in ray.nodes() if node["Alive"]]
    return int(node["MetricsExportPort"])


def replica_loads(text: str) -> list[dict[str, str | float]]:
    """Measures by replica, from what Ray exports in Prometheus' format."""
    ours = "\n".join(line for line in text.splitlines() if line.startswith(tuple(_MEASURES)))
    found: dict[tuple[str, str], dict[str, str | float]] = {}
    for family in text_string_to_metric_families(ours + "\n"):
        for sample in family.samples:
            name = _MEASURES.get(sample.name)
            labels = sample.labels
            if name is None or "replica" not in labels:
                continue
            key = labels["deployment"], labels["replica"]
            line = found.setdefault(key, {"deployment": key[0], "replica": key[1]})
            line[name] = round(sample.value, 3)
    return [found[key] for key in sorted(found)]


def changes(samples: Iterable[Sample], deployment: str) -> list[tuple[float, int]]:
    """(when, how many running replicas) at the first sample and wherever the number changed."""
    steps: list[tuple[float, int]] = []
    for sample in samples:
        number = sample.num_running(deployment)
        if not steps or steps[-1][1] != number:
            steps.append((sample.at_s, number))
    return steps


def drained_sessions(samples: Iterable[Sample], deployment: str) -> int:
    """Sessions that a replica still served while it was stopping, the most that were seen.

    Serve does not report which of two replicas stops; that one has at least the smaller number.
    """
    most = 0
    for sample in samples:
        if sample.replicas.get(deployment) != {"RUNNING": 1, "STOPPING": 1}:
            continue
        leases = [
            int(line.get("leases", 0)) for line in sample.load if line["deployment"] == deployment
        ]
        if len(leases) == 2:
            most = max(most, min(leases))
    return most
