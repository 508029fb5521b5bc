"""Chooses the replicas of Target, Draft and Constraint: Serve's autoscaling policies.

They are named in a Serve config file (`autoscaling_config.policy.policy_function`), with the limits
below as `policy_kwargs`. A limit says what one replica should carry of something; each divides what
there is, and the largest quotient counts. Routers need no policy: their streams are what Serve
counts.

Scaling up goes by the mean over `look_back_period_s`. Scaling down goes by the peak. It goes only
as far as the replicas that stay keep `spare` of every limit free. If one replica less could not
hold the load, that replica stays. A gap lies between these two, so a constant load never makes the
number go to and fro. A replica that has not reported (fresh, or silent) counts as empty upwards and
as full downwards.

Serve does the rest for any policy. `upscale_delay_s` and `downscale_delay_s` say how long a
decision must hold, `min_replicas` and `max_replicas` are the limits. A replica which leaves first
waits for its sessions (`graceful_shutdown_timeout_s`). These policies never ask for fewer than one
replica.

Serve's controller imports nothing for this: it gets the classes by value. An exception here would
hold up every application, so there is an answer whatever the limits and the reports are.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

if TYPE_CHECKING:
    from ray.serve.config import AutoscalingContext

logger = logging.getLogger("ray.serve")

Decision = tuple[int, dict[str, Any]]

_ROUNDING = 1e-9  # sums of shares miss whole numbers by less
_STALE_LOOK_BACKS = 3.0  # a report is this many look-back periods old: its replica is silent


class Need(NamedTuple):
    """Replicas that one kind of load asks for, before rounding."""

    usual: float  # by the mean; silent replicas are empty
    most: float  # by the peak; silent replicas are full


def decide(needs: Iterable[Need], num_now: int, spare: float) -> int:
    """Return how many replicas there should be.

    Args:
        needs: of each kind of load.
        num_now: how many there are, or are already wanted.
        spare: share of the replicas' limits that must be free after one has gone, 0 to below 1.
    """
    needs = list(needs)
    enough = max((_ceil(need.usual) for need in needs), default=0)
    if enough > num_now:
        return enough
    safe = max((_ceil(need.most / (1.0 - spare)) for need in needs), default=0)
    return max(1, min(num_now, safe))


class _Policy:
    """Serve makes one of these when it deploys and calls it ten times a second.

    `policy_kwargs` may give any of the `defaults`. If a limit is wrong, the number of replicas
    stays as it is and Serve's controller logs the reason. An exception would keep it from
    deploying, and it would try again for ever. `complaint_of` is for those who check a config
    beforehand.

    Args:
        policy_kwargs: a limit by its name; what one replica should carry.
    """

    defaults: ClassVar[Mapping[str, float | None]]  # None: no limit unless one is given
    shares: ClassVar[frozenset[str]] = frozenset()  # limits that are at most 1

    def __init__(self, **policy_kwargs: Any) -> None:
        given = {**self.defaults, **policy_kwargs}
        self.complaint = self.complaint_of(given)
        if self.complaint:
            logger.error("%s: %s; nothing is scaled", type(self).__name__, self.complaint)
            return
        self._spare: float = given.pop("spare")
        self._sessions: float | None = given.pop("sessions")
        self._limits: dict[str, float] = given

    def __call__(self, context: AutoscalingContext) -> Decision:
        """See `ray.serve.config.AutoscalingContext`; no state is kept."""
        num_now = context.target_num_replicas
        # No replica runs: all are starting, or lost and being replaced.
        if self.complaint or not context.running_replicas:
            return num_now, {}
        needs = [self._need(context, name, limit) for name, limit in self._limits.items()]
        if self._sessions is not None:
            share = _clean(context.total_num_requests) / self._sessions
            needs.append(Need(usual=share, most=share))
        return decide(needs, num_now, self._spare), {}

    @classmethod
    def complaint_of(cls, given: Mapping[str, object]) -> str:
        """Return the fault of the limits, or ""."""
        for name, limit in given.items():
            if name not in cls.defaults:
                return f"policy_kwargs: unknown key {name!r}, there are {', '.join(cls.defaults)}"
            if limit is None and cls.defaults[name] is None:
                continue
            if not isinstance(limit, int | float) or not _is_number(limit):
                return f"policy_kwargs: {name} must be a number, got {limit!r}"
            if name == "spare":
                if not 0.0 <= limit < 1.0:
                    return f"policy_kwargs: spare must be at least 0 and below 1, got {limit!r}"
            elif limit <= 0.0 or (name in cls.shares and limit > 1.0):
                most = " and at most 1" if name in cls.shares else ""
                return f"policy_kwargs: {name} must be above 0{most}, got {limit!r}"
        return ""

    def _need(self, context: AutoscalingContext, name: str, limit: float) -> Need:
        means = (context.aggregated_metrics or {}).get(name, {})
        series = (context.raw_metrics or {}).get(name, {})
        usual = most = 0.0
        for replica in context.running_replicas:
            points = series.get(replica, ())
            if replica in means and self._is_fresh(context, points):
                usual += _clean(means[replica]) / limit
                most += max(_clean(point.value) for point in points) / limit
            else:
                most += 1.0
        return Need(usual, max(usual, most))

    def _is_fresh(self, context: AutoscalingContext, points: Sequence[Any]) -> bool:
        settings: Any = context.config
        limit_s = _STALE_LOOK_BACKS * settings.look_back_period_s
        return bool(points) and context.current_time - points[-1].timestamp <= limit_s


class TargetPolicy(_Policy):
    """Targets by KV use and waiting tokens.

    `kv_use`: share of its KV blocks that sessions should hold at most, 0 to 1. `waiting_tokens`:
    prompt tokens that may wait, about what a replica computes in the time a first token may take.
    `sessions`: with those that wait for a place; below `max_num_seqs`, at which new ones wait where
    only routers see them. `spare`: see `decide`.
    """

    defaults = MappingProxyType(
        {"kv_use": 0.8, "waiting_tokens": 8192, "sessions": None, "spare": 0.3}
    )
    shares = frozenset({"kv_use"})


class DraftPolicy(_Policy):
    """Drafts by busy time.

    `busy`: share of the time spent in passes, 0 to 1. It tells when a draft cannot keep up, not how
    much less would do. Sessions share passes, so the time falls slower than their number.
    `sessions`: at `max_num_seqs` further ones go undrafted. `spare`: see `decide`.
    """

    defaults = MappingProxyType({"busy": 0.7, "sessions": None, "spare": 0.3})
    shares = frozenset({"busy"})


class ConstraintPolicy(_Policy):
    """Constraint replicas by their queue.

    `queue_length`: requests (grammars, masks, commits) that may wait in a replica. `sessions`:
    below `max_sessions`. `spare`: see `decide`.
    """

    defaults = MappingProxyType({"queue_length": 16, "sessions": None, "spare": 0.3})


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _clean(value: float) -> float:
    """Return a report as a load: finite and not negative."""
    return max(0.0, float(value)) if _is_number(value) else 0.0


def _ceil(value: float) -> int:
    return math.ceil(value - _ROUNDING)
