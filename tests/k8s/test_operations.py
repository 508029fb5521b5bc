"""Kubernetes and KubeRay bring the built manifests up: start, drain, loss, release."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest
import yaml

from deployments.config.applications import applications_of
from tests.k8s.test_manifests import Tree, built, cluster, groups, only

FOLDERS = ("base", "overlays/one-gpu")
DRAIN = "RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S"


@pytest.fixture(scope="module", params=FOLDERS)
def resources(request: pytest.FixtureRequest) -> list[Tree]:
    return built(request.param)


def serve_config(resources: list[Tree]) -> Tree:
    config: Tree = yaml.safe_load(only(resources, "RayService")["spec"]["serveConfigV2"])
    return config


def templates(resources: list[Tree]) -> Iterator[tuple[str, Tree]]:
    """The pod templates of the Ray cluster by group."""
    service = only(resources, "RayService")
    yield "head", cluster(service)["headGroupSpec"]["template"]
    for name, group in groups(service).items():
        yield name, group["template"]


def container_of(template: Tree) -> Tree:
    [container] = template["spec"]["containers"]
    return container  # type: ignore[no-any-return]


def environment(container: Tree) -> dict[str, str]:
    return {entry["name"]: entry.get("value", "") for entry in container["env"]}


# --- first install ----------------------------------------------------------------------------


def test_the_head_waits_for_each_commit_that_the_job_brings(resources: list[Tree]) -> None:
    """KubeRay submits the application once: while models are missing it is refused for good."""
    service, job = only(resources, "RayService"), only(resources, "Job")
    [waiting] = cluster(service)["headGroupSpec"]["template"]["spec"]["initContainers"]
    [fetching] = job["spec"]["template"]["spec"]["containers"]
    models = applications_of(serve_config(resources)).config.models
    commits = {model.revision for model in models.values()}
    assert set(environment(waiting).values()) == commits
    assert {v for k, v in environment(fetching).items() if k.endswith("_REVISION")} == commits
    [waits], [brings] = waiting["args"], fetching["args"]
    assert set(re.findall(r"\$(\w+_REVISION)", waits)) == set(environment(waiting))
    last = brings.strip().splitlines()[-1]  # a mark is made when all is there
    assert re.findall(r"\.complete-\$(\w+)", last) == ["TARGET_REVISION", "DRAFT_REVISION"]
    assert environment(fetching)["HF_HOME"] == "/models/hub"
    assert "/models/hub/.complete-$commit" in waits


def test_kuberay_waits_for_longer_than_the_models_may_take(resources: list[Tree]) -> None:
    text = only(resources, "RayService")["metadata"]["annotations"]["ray.io/initializing-timeout"]
    number, unit = re.fullmatch(r"(\d+)([hm])", text).groups()  # type: ignore[union-attr]
    limit_s = int(number) * {"h": 3600, "m": 60}[unit]
    assert limit_s >= only(resources, "Job")["spec"]["activeDeadlineSeconds"] + 45 * 60


def test_the_service_has_an_endpoint(resources: list[Tree]) -> None:
    """A proxy is where `proxy_location` puts it, and KubeRay's Service must not leave that out."""
    is_on_the_head = serve_config(resources).get("proxy_location", "EveryNode") == "HeadOnly"
    assert only(resources, "RayService")["spec"]["excludeHeadPodFromServeSvc"] is not is_on_the_head


def test_labels_that_services_of_kuberay_select_are_left_to_it(resources: list[Tree]) -> None:
    """`outrider-head-svc` finds the head by app.kubernetes.io/name: kuberay, the default."""
    for name, template in templates(resources):
        assert "app.kubernetes.io/name" not in template["metadata"]["labels"], name
        assert template["metadata"]["labels"]["outrider/part"] == "cluster", name


# --- drains -----------------------------------------------------------------------------------


def test_no_budget_counts_pods_that_kubernetes_cannot_count(resources: list[Tree]) -> None:
    """Without the subresource `scale` only a whole number in `minAvailable` allows any eviction."""
    service = only(resources, "RayService")
    for budget in (r for r in resources if r["kind"] == "PodDisruptionBudget"):
        spec = budget["spec"]
        assert "maxUnavailable" not in spec
        assert isinstance(spec["minAvailable"], int)
        role = spec["selector"]["matchLabels"]["outrider/role"]
        assert spec["minAvailable"] < groups(service)[role]["minReplicas"], "no drain would end"


def test_a_pod_that_ends_lets_its_streams_end_first(resources: list[Tree]) -> None:
    service, config = only(resources, "RayService"), serve_config(resources)
    longest_s = config["http_options"]["request_timeout_s"]
    for name, template in templates(resources):
        drain_s = int(environment(container_of(template))[DRAIN])
        assert drain_s > longest_s, name
        if name not in ("head", "draft"):  # no stream ends with those
            assert template["spec"]["terminationGracePeriodSeconds"] > drain_s, name
    assert service["spec"]["rayClusterDeletionDelaySeconds"] >= longest_s


def test_clients_come_to_routers_alone() -> None:
    """KubeRay's Service has each worker pod that is ready, and every pod with replicas a proxy."""
    for name, template in templates(built("base")):
        probe: dict[str, Any] = container_of(template).get("readinessProbe", {})
        is_never_ready = probe.get("exec", {}).get("command") == ["/bin/false"]
        assert is_never_ready is (name in ("draft", "target")), name


# --- losses -----------------------------------------------------------------------------------


def test_the_head_keeps_its_state_where_its_death_does_not_reach_it(resources: list[Tree]) -> None:
    options = cluster(only(resources, "RayService"))["gcsFaultToleranceOptions"]
    store = only(resources, "StatefulSet")
    [service] = [r for r in resources if r["kind"] == "Service"]
    [port] = service["spec"]["ports"]
    assert options["redisAddress"] == f"{service['metadata']['name']}:{port['port']}"
    assert service["spec"]["selector"] == store["spec"]["template"]["metadata"]["labels"]
    [container] = store["spec"]["template"]["spec"]["containers"]
    [password] = container["env"]
    assert options["redisPassword"]["valueFrom"] == password["valueFrom"]
    [claim] = store["spec"]["volumeClaimTemplates"]
    [mount] = container["volumeMounts"]
    assert mount["name"] == claim["metadata"]["name"]
    [command] = container["args"]
    assert f"--dir {mount['mountPath']}" in command
    assert "--appendonly yes" in command


def test_a_connection_to_a_head_that_is_gone_breaks_in_seconds(resources: list[Tree]) -> None:
    """A router's loop stands still until then; streams give a silent target up after 30 s."""
    for name, template in templates(resources):
        limit_ms = int(environment(container_of(template))["RAY_grpc_client_keepalive_timeout_ms"])
        assert 1000 <= limit_ms <= 10_000, name


def test_only_routers_read_the_keys(resources: list[Tree]) -> None:
    for name, template in templates(resources):
        names = {volume["name"] for volume in template["spec"]["volumes"]}
        assert ("api-keys" in names) is (name in ("router", "gpu")), name


def test_a_full_disk_ends_a_pod_and_no_node(resources: list[Tree]) -> None:
    for name, template in templates(resources):
        assert container_of(template)["resources"]["limits"]["ephemeral-storage"], name


# --- releases ---------------------------------------------------------------------------------


def test_another_release_makes_another_job(resources: list[Tree]) -> None:
    """A Job's template cannot be changed: its name has the commit, and it goes when it is done."""
    job = only(resources, "Job")
    [container] = job["spec"]["template"]["spec"]["containers"]
    commit = environment(container)["TARGET_REVISION"]
    assert job["metadata"]["name"] == f"fetch-models-{commit[:8]}"
    assert job["spec"]["ttlSecondsAfterFinished"] <= 3600
