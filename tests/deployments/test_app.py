import inspect
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml
from ray import cloudpickle
from ray.serve._private.build_app import build_app
from ray.serve._private.config import DeploymentConfig
from ray.serve._private.constants import REPLICA_HEALTH_CHECK_UNHEALTHY_THRESHOLD
from ray.serve.exceptions import RayServeException

from deployments.app import DeployedConfig, DeployedModel, build, build_model
from deployments.config.applications import applications_of
from deployments.config.check import CannotServe
from deployments.config.schema import AppConfig
from deployments.config.sections.models import LinkConfig
from deployments.ingress.replica import ready_line
from deployments.monitor import MonitorConfig
from deployments.monitor import build as build_monitor
from deployments.serve.lease_router import LeaseRouter
from tests.harness.local import DEMO

DRAFT = {"model_path": str(DEMO / "draft")}


def target(**keys: Any) -> dict[str, Any]:
    return {"model_path": str(DEMO / "target"), "max_model_len": 256, "max_num_seqs": 5, **keys}


def config(**sections: Any) -> AppConfig:
    return AppConfig.model_validate({"target": target(), **sections})


def _stand_in(deployment: Any, app_name: str) -> str:
    return f"handle of {deployment.name}"


def deployments(app: Any) -> dict[str, Any]:
    built = build_app(
        app, name="outrider", default_runtime_env={}, make_deployment_handle=_stand_in
    )
    return {deployment.name: deployment for deployment in built.deployments}


MAX_INLINE_BYTES = 100 * 1024  # of Ray: a larger answer goes through object stores


@pytest.mark.parametrize(
    "app",
    [build(config()), build(config(router={"spare": True})), build_monitor(MonitorConfig())],
    ids=["service", "spare router", "monitor"],
)
def test_a_replica_can_tell_a_new_controller_all_of_itself_in_one_message(app: Any) -> None:
    """After the head's death nothing larger arrives for a minute, and Serve kills the replica."""
    for name, told in options_of(app).items():
        # Serve makes it anew from these where a config file overrides any option.
        remade = DeploymentConfig(**{**told.model_dump(), "num_replicas": 2})
        for settings in (told, remade):
            assert len(cloudpickle.dumps(settings)) < MAX_INLINE_BYTES / 2, name
            assert settings.request_router_config.get_request_router_class() is not None


def options_of(app: Any) -> dict[str, DeploymentConfig]:
    return {name: found._deployment_config for name, found in deployments(app).items()}


@pytest.mark.parametrize("name", ["Target", "Constraint", "Router"])
@pytest.mark.parametrize("has_spare", [True, False])
def test_what_has_a_spare_is_scaled_to_two_replicas_as_soon_as_one_runs(
    name: str, has_spare: bool
) -> None:
    spare = {"spare": has_spare}
    section = target(**spare) if name == "Target" else spare
    told = options_of(build(config(**{name.lower(): section})))[name]
    assert told.num_replicas == 1
    assert "num_replicas" not in told.user_configured_option_names, "a file may scale it"
    scaling = told.autoscaling_config
    assert (scaling is not None) == has_spare
    if scaling is None:
        return
    assert (scaling.min_replicas, scaling.max_replicas) == (1, 2)
    policy = scaling.policy.get_policy()()
    for running, now, wanted in (([], 1, 1), (["a"], 1, 2), (["a", "b"], 2, 2), ([], 2, 2)):
        context = SimpleNamespace(running_replicas=running, target_num_replicas=now)
        assert policy(context) == (wanted, {})


def test_serve_will_convert_the_arguments() -> None:
    [parameter] = inspect.signature(build).parameters.values()
    assert issubclass(parameter.annotation, AppConfig), "a string would give build a plain dict"


def test_a_wrong_key_is_told_as_serve_tells_its_own_errors() -> None:
    """All others are tried four times and told as a traceback."""
    with pytest.raises(RayServeException, match=r"unknown key 'target\.gpus'"):
        DeployedConfig.model_validate({"target": {"model_path": "x", "gpus": 1}})


def test_keys_of_a_command_line_are_dotted() -> None:
    """`serve run deployments.app:build target.model_path=x target.max_num_seqs=8 ...`."""
    read = DeployedConfig.model_validate(
        {
            "target.model_path": "x",
            "target.max_num_seqs": "8",
            "target.enable_prefix_caching": "false",
            "router.speculation.num_speculative_tokens": "adaptive",
            "draft": {"model_path": "y", "max_num_seqs": 1},
            "draft.max_num_seqs": "9",
        }
    )
    assert (read.target.max_num_seqs, read.target.enable_prefix_caching) == (8, False)
    assert read.draft is not None
    assert (read.draft.model_path, read.draft.max_num_seqs) == ("y", 9)
    with pytest.raises(ValueError, match=r"target\.model_path\.x: target\.model_path has no keys"):
        DeployedConfig.model_validate({"target": {"model_path": "x"}, "target.model_path.x": "1"})


def test_what_the_router_has_no_room_for_is_told_to_come_again() -> None:
    app = build(config(router={"max_sessions": 3, "max_queued_sessions": 4}))
    options = options_of(app)["Router"]
    assert options.max_queued_requests == 7 + 64, "a burst reaches the router, which says why"
    assert options.max_ongoing_requests > options.max_queued_requests, (
        "the router must be able to refuse by itself"
    )
    assert options.backpressure_config.status_code == 429
    assert options.backpressure_config.retry_after_s == 1


NAMED = {"small": DRAFT | {"max_num_seqs": 7}, "tiny": DRAFT}


@pytest.mark.parametrize(
    ("sections", "drafts"),
    [
        ({}, {}),
        ({"draft": DRAFT}, {"Draft": 64}),
        ({"drafts": NAMED}, {"Draft-small": 7, "Draft-tiny": 64}),
        ({"draft": DRAFT, "drafts": NAMED}, {"Draft": 64, "Draft-small": 7, "Draft-tiny": 64}),
    ],
    ids=["none", "one", "named", "one and named"],
)
def test_each_model_is_a_deployment(sections: dict[str, Any], drafts: dict[str, int]) -> None:
    found = deployments(build(config(**sections)))
    assert set(found) == {"Router", "Target", "Constraint", *drafts}
    assert found["Target"].max_ongoing_requests == 5
    assert {name: found[name].max_ongoing_requests for name in drafts} == drafts


def test_a_router_has_one_event_loop() -> None:
    environment = deployments(build(config()))["Router"].ray_actor_options["runtime_env"]
    assert environment["env_vars"]["RAY_SERVE_RUN_USER_CODE_IN_SEPARATE_THREAD"] == "0"
    for path in (Path(__file__).parents[2] / "configs").glob("*.yaml"):
        for options in applications_of(yaml.safe_load(path.read_text())).overrides:
            if options["name"] == "Router" and "ray_actor_options" in options:
                assert options["ray_actor_options"]["runtime_env"] == environment, path


def test_silence_counts_as_death_after_the_stated_time() -> None:
    stalls = {"target": target(stall_timeout_s=6), "constraint": {"stall_timeout_s": 12}}
    found = options_of(build(config(**stalls)))
    for name, stall_timeout_s in {"Target": 6, "Constraint": 12}.items():
        options = found[name]
        silent_s = REPLICA_HEALTH_CHECK_UNHEALTHY_THRESHOLD * options.health_check_timeout_s
        assert silent_s == pytest.approx(stall_timeout_s)
        assert options.health_check_period_s <= options.health_check_timeout_s
        assert options.request_router_config.get_request_router_class() is LeaseRouter


def test_models_may_have_applications_of_their_own() -> None:
    apart = {"target": "big", "draft": "small", "drafts.tiny": "tiny"}
    found = deployments(build(config(applications=apart)))
    assert set(found) == {"Router", "Constraint"}
    _, _, drafts, big, *_ = found["Router"].init_args
    assert {pool: (one.app_name, one.deployment_name) for pool, one in drafts.items()} == {
        "draft": ("small", "Draft"),
        "tiny": ("tiny", "Draft-tiny"),
    }
    assert (big.app_name, big.deployment_name) == ("big", "Target")
    alone = deployments(build_model(DeployedModel.model_validate({"target": target()})))
    assert set(alone) == {"Target"}
    tree = {"target": target(), "drafts": {"tiny": DRAFT}, "model_name": "m"}
    alone = deployments(build_model(DeployedModel.model_validate(tree)))
    assert set(alone) == {"Draft-tiny"}
    assert alone["Draft-tiny"].init_args[0] == "draft"
    assert alone["Draft-tiny"].init_args[3] == "m"


def test_a_draft_that_cannot_be_served_ends_no_run(monkeypatch: pytest.MonkeyPatch) -> None:
    ended = []
    monkeypatch.setattr("deployments.app.end_waiting_run", lambda: ended.append(True))
    lost = {"model_path": str(DEMO / "nothing")}
    with pytest.raises(CannotServe, match=r"draft\.model_path: no such folder"):
        build_model(DeployedModel.model_validate({"target": target(), "draft": lost}))
    assert ended == []
    with pytest.raises(CannotServe, match=r"target\.model_path: no such folder"):
        build_model(DeployedModel.model_validate({"target": lost}))
    assert ended == [True]


def test_the_links_limits_reach_both_ends() -> None:
    found = deployments(build(config(link={"high_water_mark": 77})))
    for name in ("Router", "Target", "Constraint"):
        [link] = [value for value in found[name].init_args if isinstance(value, LinkConfig)]
        assert link.high_water_mark == 77


@pytest.mark.parametrize("num_ranks", [1, 4])
def test_each_rank_has_a_bundle_with_a_gpu_and_their_coordinator_has_none(num_ranks: int) -> None:
    ranks = {"device": "cuda", "tensor_parallel_size": num_ranks}
    found = deployments(build(config(draft=DRAFT | ranks)))
    gpus = [bundle["GPU"] for bundle in found["Draft"]._replica_config.placement_group_bundles]
    assert gpus == [1] * num_ranks
    assert not found["Draft"].ray_actor_options.get("num_gpus")
    assert len(found["Target"]._replica_config.placement_group_bundles) == 1


def test_wrong_pair_is_refused_before_anything_starts(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"draft\.model_path: no such folder"):
        build(config(draft={"model_path": str(tmp_path / "nothing")}))


def test_the_ready_line_can_be_pasted() -> None:
    line = ready_line("http://127.0.0.1:8000", "demo")
    assert "\n" not in line
    body = line[line.index("-d '") + 4 : line.rindex("'")]
    assert json.loads(body)["model"] == "demo"
