"""Shows what a router's sessions lost: leases by part and reason, and how long streams paused."""

from __future__ import annotations

from deployments.serve.instruments import Meters
from deployments.serve.metrics import Metric, Table, counter
from router.remote.losses import Losses

_PAUSE_S = (0.1, 0.25, 0.5, 1, 2.5, 5, 10, 15, 20, 30, 45, 60, 90, 120, 240, 600)

METRICS: tuple[Metric[Losses], ...] = (
    counter(
        "outrider:lost_leases",
        "Leases that sessions lost, by part (target, draft, constraint) and reason (gone: the "
        "process; silent: its link; no_answer; fault: nonsense; ended: idle)",
        lambda losses: {
            (part, reason): number
            for part, one in losses.by_part().items()
            for reason, number in one.num_lost.items()
        },
        "part",
        "reason",
    ),
)


class LossMetrics:
    """The instruments of one router's losses.

    Args:
        meters: makes them.
        losses: go on being counted.
    """

    def __init__(self, meters: Meters, losses: Losses) -> None:
        self._losses = losses
        self._table = Table(meters, METRICS)
        self._pause_s = meters.histogram(
            "outrider:failover_seconds",
            "From the loss of a target or constraint replica to the session's next answer by "
            "another; its count is the fail-overs that succeeded",
            _PAUSE_S,
            ["part"],
        )

    def publish(self) -> None:
        """Write all instruments as the losses stand now."""
        self._table.follow(self._losses)
        for part, one in self._losses.by_part().items():
            while one.new_pauses:
                self._pause_s.observe(one.new_pauses.popleft(), part=part)
