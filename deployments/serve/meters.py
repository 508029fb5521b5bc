"""Ray's metrics as a mirror of `instruments.Meters`: scraped from every node's own agent.

Ray allows no colon in names and puts `ray_` before them: `vllm:num_requests_running` becomes
`ray_vllm_num_requests_running`, as in Ray's own vLLM integration. Replica, deployment and
application are labels that Serve adds.
"""

from __future__ import annotations

from typing import Any

from ray.serve import metrics

from deployments.serve.instruments import Declaration

_LEAST = 1e-9  # Ray's histograms take no bound of 0


def ray_mirror(declared: Declaration) -> Any:
    """Ray's instrument for a declaration; an `instruments.Mirror`, for use in a Serve replica."""
    name, text = declared.name.replace(":", "_"), declared.text
    labels: Any = declared.labels  # any number of them, whatever Ray's hint says
    if declared.kind == "counter":
        return metrics.Counter(name, description=text, tag_keys=labels)
    if declared.kind == "gauge":
        return metrics.Gauge(name, description=text, tag_keys=labels)
    return metrics.Histogram(
        name,
        description=text,
        boundaries=[max(bound, _LEAST) for bound in declared.buckets],
        tag_keys=labels,
    )
