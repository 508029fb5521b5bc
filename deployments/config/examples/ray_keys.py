"""What keys outside `args` mean: Ray Serve's own, and those of our scaling policies.

By key: a description, and its default as it is to be said. Tests compare the defaults with Ray's
and with the policies'.
"""

from __future__ import annotations

from deployments.config.live_limits import ADMISSION_HEADROOM, LIVE_KEYS
from router.limits import SpeculationLimits

_FIXED = sorted(set(SpeculationLimits.model_fields) - LIVE_KEYS["speculation"])
_LIVE = sorted(LIVE_KEYS[""] - {"max_sessions", "max_queued_sessions", "speculation"})


# Longer than clients and load balancers keep idle connections, 90 s by Go's default and 60 by an
# AWS ALB's: who closes first must not be the server, or a request is sent into a closed connection.
KEEP_ALIVE_S = 120


def _rays(default: object) -> str:
    return f"Ray's default: {default}"


RAY_KEYS: dict[str, tuple[str, str]] = {
    "proxy_location": (
        "HTTP proxies: EveryNode (on each node that has a replica), HeadOnly, Disabled",
        _rays("EveryNode"),
    ),
    "host": ("address that the HTTP port is bound to; 0.0.0.0: all", _rays("0.0.0.0")),
    "port": ("", _rays(8000)),
    "request_timeout_s": ("longest whole response, streams included", _rays("none")),
    "keep_alive_timeout_s": (
        "idle HTTP connections are closed after this; more than clients and load balancers keep "
        "theirs, many 60 or 90",
        _rays(90),
    ),
    "encoding": ("TEXT or JSON", _rays("TEXT")),
    "log_level": ("", _rays("INFO")),
    "enable_access_log": ("a line per HTTP request and handle call", _rays("true")),
    "num_replicas": ("", _rays(1)),
    "num_cpus": ("of the replica's own process", _rays(1)),
    "graceful_shutdown_timeout_s": (
        "a replica that leaves waits so long for its sessions",
        _rays(20),
    ),
    "placement_group_bundles": ("one bundle per rank; the first also holds the coordinator", ""),
    "placement_group_bundle_label_selector": ("one entry counts for all bundles", ""),
    "min_replicas": ("", _rays(1)),
    "max_replicas": ("", _rays(1)),
    "target_ongoing_requests": (
        "open streams per replica that Serve aims for, below max_sessions",
        _rays(2),
    ),
    "look_back_period_s": ("the load is averaged over this", _rays(30)),
    "upscale_delay_s": ("a load that lasts so long adds replicas", _rays(30)),
    "downscale_delay_s": ("one that is small for so long removes some", _rays(600)),
    "max_surge_percent": (
        "replicas with changed args that start before the old ones end",
        _rays(0),
    ),
    "user_config": (
        "limits of running routers: `serve deploy` of a change here replaces nothing and touches "
        "no stream; keys of args.router, which hold where this says nothing: max_sessions and "
        f"max_queued_sessions (together at most {ADMISSION_HEADROOM} times those of args), "
        f"{', '.join(_LIVE)}, speculation without {' and '.join(_FIXED)}; like "
        "{max_sessions: 128, speculation: {enabled: false}}",
        "default: {}",
    ),
    # deployments/scaling.py
    "policy_kwargs": ("what one replica should carry (deployments/scaling.py)", ""),
    "kv_use": ("share of its KV blocks that sessions hold", "default: 0.8"),
    "waiting_tokens": ("prompt tokens that wait", "default: 8192"),
    "busy": ("share of the time spent in passes", "default: 0.7"),
    "queue_length": ("requests that wait in a replica", "default: 16"),
    "sessions": ("below what a replica holds, where new ones wait or go without", "default: any"),
    "spare": ("share of these that must be free after one less", "default: 0.3"),
}
