"""The trial of changes deploys what it says to a running service; no cluster is started."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import pytest
import yaml
from ray.serve.schema import ServeDeploySchema

from deployments.config.applications import applications_of
from deployments.config.live_limits import with_user_config
from deployments.config.model_files import check_models, resolved
from deployments.config.schema import AppConfig
from loadtest.experiments.rolling import changes, first_config
from loadtest.report.machine import ROOT
from loadtest.service.cluster import on_one_machine
from loadtest.service.served import Config, options
from loadtest.trial.scene import Terms

PROD = ROOT / "configs" / "prod.yaml"
PLACED = (
    "ray_actor_options",
    "placement_group_bundles",
    "placement_group_bundle_label_selector",
    "graceful_shutdown_timeout_s",
)


def checked(config: Config) -> AppConfig:
    ServeDeploySchema.model_validate(config)
    whole = resolved(applications_of(config).config)
    check_models(whole)
    return whole


def test_a_config_for_real_nodes_keeps_its_placement_on_one_machine() -> None:
    ours, theirs = on_one_machine(PROD), yaml.safe_load(PROD.read_text(encoding="utf-8"))
    for name in ("Router", "Target", "Draft", "Constraint"):
        for key in PLACED:
            assert options(ours, name).get(key) == options(theirs, name).get(key)
    assert checked(ours).target.tensor_parallel_size == 4
    before, after = (applications_of(config).config for config in (theirs, ours))
    changed = {
        (name, key)
        for name in ("target", "draft", "router", "constraint", "link")
        for key, value in getattr(after, name)
        if getattr(getattr(before, name), key) != value
    }
    model = {"model_path", "revision", "device", "dtype", "max_model_len", "kv_cache_tokens"}
    assert changed == {
        *((name, key) for name in ("target", "draft") for key in model),
        *(("router", key) for key in ("model_name", "tokenizer_path")),
    }


def leaves(tree: Any, path: str = "") -> dict[str, Any]:
    if isinstance(tree, dict):
        parts = [leaves(value, f"{path}.{key}") for key, value in tree.items()]
    elif isinstance(tree, list):
        parts = [leaves(value, f"{path}.{i}") for i, value in enumerate(tree)]
    else:
        return {path: tree}
    return {key: value for part in parts for key, value in part.items()} or {path: tree}


def first() -> Config:
    config: Config = yaml.safe_load(PROD.read_text(encoding="utf-8"))
    first_config(config, Terms(tensor_parallel_size=1))
    return config


def deployed() -> Iterator[tuple[str, Config]]:
    config = first()
    for change in changes(config):
        config = copy.deepcopy(config)
        change.edit(config)
        yield change.way, config


def test_each_change_is_the_one_it_is_called_and_only_the_wrong_limits_are_wrong() -> None:
    before = first()
    router = checked(before).router
    found = {}
    for name, config in deployed():
        checked(config)
        old, new = leaves(before), leaves(config)
        found[name] = {key.rsplit(".", 1)[1] for key in old | new if old.get(key) != new.get(key)}
        before = config
        limits = options(config, "Router")["user_config"]
        if name == "wrong limits":
            with pytest.raises(ValueError, match="unknown key 'max_sesions'"):
                with_user_config(router, limits)
        else:
            with_user_config(router, limits)
    k_limit = "max_num_speculative_tokens"
    assert found["other limits"] >= {k_limit, "max_sessions"}
    assert found["wrong limits"] == {k_limit, "max_sessions", "max_sesions"}
    assert found["a second draft"] == {"num_replicas"}
    assert found["a key of the router"] == {"default_max_tokens"}
    assert found["a key of the target"] == {"max_num_batched_tokens"}
