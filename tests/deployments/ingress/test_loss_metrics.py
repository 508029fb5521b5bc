"""The losses of sessions, as metrics."""

from __future__ import annotations

from deployments.ingress.loss_metrics import LossMetrics
from deployments.serve.instruments import Meters
from models.protocol.errors import LinkLost
from router.remote.losses import Losses


def test_losses_and_pauses_are_counted_once() -> None:
    meters, losses = Meters({"model_name": "tiny"}), Losses()
    metrics = LossMetrics(meters, losses)
    losses.target.note("a", LinkLost("killed"))
    losses.target.note("a", LinkLost("killed"))
    losses.target.note("b", LinkLost("hangs", "no_answer"))
    losses.draft.note("c", LinkLost("idle", "ended"))
    losses.target.note_replaced(3.0)
    for _ in range(2):
        metrics.publish()
    losses.constraint.note_replaced(0.2)
    metrics.publish()
    page = meters.text().decode()
    for line in (
        'outrider:lost_leases_total{model_name="tiny",part="target",reason="gone"} 2.0',
        'outrider:lost_leases_total{model_name="tiny",part="target",reason="no_answer"} 1.0',
        'outrider:lost_leases_total{model_name="tiny",part="draft",reason="ended"} 1.0',
        'outrider:failover_seconds_count{model_name="tiny",part="target"} 1.0',
        'outrider:failover_seconds_bucket{le="2.5",model_name="tiny",part="target"} 0.0',
        'outrider:failover_seconds_bucket{le="5.0",model_name="tiny",part="target"} 1.0',
        'outrider:failover_seconds_count{model_name="tiny",part="constraint"} 1.0',
    ):
        assert line in page, page
