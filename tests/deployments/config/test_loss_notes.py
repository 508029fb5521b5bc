"""A target that is alone and slow to load is told of."""

from __future__ import annotations

import copy
from typing import Any

import yaml

from deployments.config.explain import loss_notes
from deployments.config.fit import ModelSizes
from deployments.config.placement import placements_of
from deployments.config.schema import AppConfig
from loadtest.report.machine import ROOT

CONTENT = yaml.safe_load((ROOT / "configs" / "prod.yaml").read_text())


def notes(*, failover_s: float, min_replicas: int = 1) -> list[str]:
    application: dict[str, Any] = copy.deepcopy(CONTENT["applications"][0])
    application["args"]["router"]["timeouts"]["failover_s"] = failover_s
    [target] = [each for each in application["deployments"] if each["name"] == "Target"]
    target["autoscaling_config"]["min_replicas"] = min_replicas
    config = AppConfig.model_validate(application["args"])
    size = ModelSizes(
        num_parameters=72 * 10**9, weight_bytes=36 * 10**9, kv_bytes_per_token=1, kv_tokens=1
    )
    return loss_notes(config, placements_of(config, application["deployments"]), {"target": size})


def test_streams_that_end_before_the_only_target_is_back_are_told_of() -> None:
    [note] = notes(failover_s=120)
    assert note.startswith("one target, which takes some 174 s to load: when it is lost")
    assert "router.timeouts.failover_s, 120 s" in note


def test_two_targets_or_a_longer_wait_are_enough() -> None:
    assert notes(failover_s=120, min_replicas=2) == []
    shipped = CONTENT["applications"][0]["args"]["router"]["timeouts"]["failover_s"]
    assert notes(failover_s=shipped) == []
