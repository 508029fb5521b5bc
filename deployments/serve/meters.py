"""Ray's metrics as a mirror of `meters.Meters`: scraped from every node's own agent.

Ray allows no colon in names and puts `ray_` before them: `vllm:num_requests_running` becomes
`ray_vllm_num_requests_running`, as in Ray's own vLLM integration. Replica, deployment and
application are labels that Serve adds.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ray.serve import metrics

_LEAST = 1e-9  # Ray's histograms take no bound of 0


class RayMirror:
    """See `meters.Mirror`. To be used inside a Serve replica."""

    def counter(self, name: str, text: str, labels: Any) -> Any:
        """A counter that goes by `name`."""
        return metrics.Counter(_name(name), description=text, tag_keys=labels)

    def gauge(self, name: str, text: str, labels: Any) -> Any:
        """A gauge that goes by `name`."""
        return metrics.Gauge(_name(name), description=text, tag_keys=labels)

    def histogram(self, name: str, text: str, labels: Any, buckets: Sequence[float]) -> Any:
        """A histogram that goes by `name`."""
        return metrics.Histogram(
            _name(name),
            description=text,
            boundaries=[max(bound, _LEAST) for bound in buckets],
            tag_keys=labels,
        )


def _name(name: str) -> str:
    return name.replace(":", "_")
