"""A spare: the second of two replicas, which has all leases or requests when the first is lost.

Serve's autoscaler asks for it when the first has run for a while. So the machine is for the first
parts at the first start, and a service counts as deployed then. Both replicas tell when they became
ready, and request routers ask the older one first. If both are lost at once, both load at once,
and share no weights.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from deployments.serve.nearest import READY_S

if TYPE_CHECKING:
    from ray.serve.config import AutoscalingContext

_AFTER_START_S = 10.0  # the other parts of a service start too, and have the machine so long
POLICY = f"{__name__}:SparePolicy"


class SparePolicy:
    """Serve's autoscaling policy of a deployment with a spare.

    Serve's controller imports it, or gets it by value. So this module imports next to nothing.
    """

    def __call__(self, context: AutoscalingContext) -> tuple[int, dict[str, Any]]:
        """See `ray.serve.config.AutoscalingContext`: two replicas, as soon as one runs."""
        return (2 if context.running_replicas else context.target_num_replicas), {}


def spare_options(has_spare: bool) -> dict[str, Any]:
    """Return the options of a deployment with a spare, or none.

    `num_replicas` is not among them: it would contradict an autoscaling_config of a file.
    """
    if not has_spare:
        return {}
    scaling = {
        "min_replicas": 1,
        "max_replicas": 2,
        "upscale_delay_s": _AFTER_START_S,
        "policy": {"policy_function": POLICY},
    }
    return {"autoscaling_config": scaling}


def ready_now(has_spare: bool) -> dict[str, float]:
    """Return a replica's metadata, when it has become ready, for request routers."""
    return {READY_S: time.time()} if has_spare else {}
