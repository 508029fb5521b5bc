"""How many replicas Target, Draft and Constraint should have: Serve's autoscaling policies.

Named in a Serve config file (`autoscaling_config.policy.policy_function`), with the limits below
as `policy_kwargs`. A limit says what one replica should carry of something; each divides what there
is, and the largest quotient counts. Routers need no policy: their streams are what Serve counts.

Scaling up goes by the mean over `look_back_period_s`. Scaling down goes by the peak, and only as
far as the replicas that stay keep `spare` of every limit free: what one replica less could not
hold keeps that replica. Between these two lies a gap, so a constant load never makes the number
go to and fro. A replica that has not reported (fresh, or silent) counts as empty upwards and as
full downwards.

Serve does the rest for any policy: `upscale_delay_s` and `downscale_delay_s` (how long a decision
must stand), `min_replicas` and `max_replicas`, and that a replica which leaves first waits for its
sessions (`graceful_shutdown_timeout_s`). These policies never ask for fewer than one replica.

Serve's controller imports nothing for this: it gets the classes by value. An exception here would
hold up the scaling of the whole application, so whatever the reports hold, there is an answer.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from ray.serve.config import AutoscalingContext

Decision = tuple[int, dict[str, Any]]

_ROUNDING = 1e-9  # sums of shares miss whole numbers by less
_STALE_LOOK_BACKS = 3.0  # a report is this many look-back periods old: its replica is silent
_SPARE = 0.3


class Need(NamedTuple):
    """Replicas that one kind of load asks for, before rounding."""

    usual: float  # by the mean; silent replicas are empty
    most: float  # by the peak; silent replicas are full


def decide(needs: Iterable[Need], num_now: int, spare: float) -> int:
    """How many replicas there should be.

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

    Args:
        limits: what one replica should carry of each report it sends.
        sessions: how many sessions one replica should have, waiting ones included; None: any.
        spare: see `decide`.

    Raises:
        ValueError: a limit is out of range; the message names it.
    """

    def __init__(self, limits: Mapping[str, float], sessions: float | None, spare: float) -> None:
        for name, limit in {**limits, "sessions": 1.0 if sessions is None else sessions}.items():
            if not (_is_number(limit) and limit > 0.0):
                raise ValueError(f"policy_kwargs: {name} must be a number above 0, got {limit!r}")
        if not (_is_number(spare) and 0.0 <= spare < 1.0):
            raise ValueError(f"policy_kwargs: spare must be at least 0 and below 1, got {spare!r}")
        self._limits = dict(limits)
        self._sessions = sessions
        self._spare = spare

    def __call__(self, context: AutoscalingContext) -> Decision:
        """See `ray.serve.config.AutoscalingContext`; no state is kept."""
        num_now = context.target_num_replicas
        if not context.running_replicas:  # all are starting, or lost and being replaced
            return num_now, {}
        needs = [self._need(context, name, limit) for name, limit in self._limits.items()]
        if self._sessions is not None:
            share = _clean(context.total_num_requests) / self._sessions
            needs.append(Need(usual=share, most=share))
        return decide(needs, num_now, self._spare), {}

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
        limit_s = _STALE_LOOK_BACKS * context.config.look_back_period_s
        return bool(points) and context.current_time - points[-1].timestamp <= limit_s


class TargetPolicy(_Policy):
    """Targets by KV use and waiting tokens.

    Args:
        kv_use: share of a replica's KV blocks that sessions should hold at most, 0 to 1.
        waiting_tokens: prompt tokens that may wait to be computed; what a replica computes in the
            time that a first token may take.
        sessions: sessions a replica should hold; below its `max_sessions`, at which new ones wait
            where only routers see them.
        spare: share of these limits that stays free when a replica goes.
    """

    def __init__(
        self,
        *,
        kv_use: float = 0.8,
        waiting_tokens: float = 8192,
        sessions: float | None = None,
        spare: float = _SPARE,
    ) -> None:
        limits = {"kv_use": _share("kv_use", kv_use), "waiting_tokens": waiting_tokens}
        super().__init__(limits, sessions, spare)


class DraftPolicy(_Policy):
    """Drafts by busy time.

    Args:
        busy: share of the time that a draft should spend in passes, 0 to 1.
        sessions: sessions a replica should hold; at its `max_sessions` further ones go undrafted.
        spare: share of these limits that stays free when a replica goes.
    """

    def __init__(
        self, *, busy: float = 0.7, sessions: float | None = None, spare: float = _SPARE
    ) -> None:
        super().__init__({"busy": _share("busy", busy)}, sessions, spare)


class ConstraintPolicy(_Policy):
    """Constraint replicas by their queue.

    Args:
        queue_length: requests (grammars, masks, commits) that may wait in a replica.
        sessions: sessions a replica should hold; below its `max_sessions`.
        spare: share of these limits that stays free when a replica goes.
    """

    def __init__(
        self, *, queue_length: float = 16, sessions: float | None = None, spare: float = _SPARE
    ) -> None:
        super().__init__({"queue_length": queue_length}, sessions, spare)


def _share(name: str, value: float) -> float:
    if _is_number(value) and value > 1.0:
        raise ValueError(f"policy_kwargs: {name} must be at most 1, got {value!r}")
    return value


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _clean(value: float) -> float:
    """A report as a load: finite and not negative."""
    return max(0.0, float(value)) if _is_number(value) else 0.0


def _ceil(value: float) -> int:
    return math.ceil(value - _ROUNDING)
