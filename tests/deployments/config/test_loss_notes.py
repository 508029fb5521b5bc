"""A target that is alone and slow to load is told of."""

from __future__ import annotations

from deployments.config.explain import loss_notes
from deployments.config.fit import ModelSizes
from deployments.config.serve_file import read_serve_file
from loadtest.report.machine import ROOT

PROD = ROOT / "configs" / "prod.yaml"


def notes(*, failover_s: float, min_replicas: int = 1) -> list[str]:
    changes = {
        "router.timeouts.failover_s": failover_s,
        "Target.autoscaling_config.min_replicas": min_replicas,
    }
    served = read_serve_file(PROD, changes)
    size = ModelSizes(
        num_parameters=72 * 10**9, weight_bytes=36 * 10**9, kv_bytes_per_token=1, kv_tokens=1
    )
    return loss_notes(served.config, served.placements, {"target": size})


def test_streams_that_end_before_the_only_target_is_back_are_told_of() -> None:
    [note] = notes(failover_s=120)
    assert note.startswith("one target, which takes some 174 s to load: when it is lost")
    assert "router.timeouts.failover_s, 120 s" in note


def test_two_targets_or_a_longer_wait_are_enough() -> None:
    assert notes(failover_s=120, min_replicas=2) == []
    shipped = read_serve_file(PROD).config.router.timeouts.failover_s
    assert notes(failover_s=shipped) == []
