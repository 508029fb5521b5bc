"""The manifests of k8s/: against Ray's Serve schema, KubeRay's own definitions, and each other."""

from __future__ import annotations

import copy
import os
import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml
from pydantic import ValidationError
from ray._raylet import node_labels_match_selector  # type: ignore[attr-defined]  # compiled
from ray.serve.config import AutoscalingConfig
from ray.serve.schema import HTTPOptionsSchema, ServeDeploySchema

from deployments.api.observer import CLIENT_GONE
from deployments.config.applications import applications_of
from deployments.config.schema import AppConfig
from deployments.config.serve_file import read_serve_text
from deployments.metrics import declared
from deployments.serve.instruments import Declaration
from models.protocol import errors

ROOT = Path(__file__).resolve().parents[2]
K8S = ROOT / "k8s"
Tree = dict[str, Any]


def documents(path: Path) -> list[Tree]:
    return [document for document in yaml.safe_load_all(path.read_text()) if document]


def ray_service() -> Tree:
    [document] = documents(K8S / "base" / "rayservice.yaml")
    return document


def fetched_models(overlay: Path | None = None) -> dict[str, str]:
    """What the job puts into the volume, by its environment; an overlay may change some of it."""
    [job] = documents(K8S / "models" / "fetch-models.yaml")
    [container] = job["spec"]["template"]["spec"]["containers"]
    values = [(entry["name"], entry.get("value", "")) for entry in container["env"]]
    if overlay is not None:
        [kustomization] = documents(overlay / "kustomization.yaml")
        [patch] = [
            each["patch"]
            for each in kustomization["patches"]
            if each.get("target", {}).get("kind") == "Job"
        ]
        for change in yaml.safe_load(patch):
            *_, index, field = change["path"].split("/")
            if field == "value":
                values[int(index)] = values[int(index)][0], change["value"]
    return dict(values)


def check_models(config: Tree, job: dict[str, str], environment: list[Tree]) -> None:
    """Every model of the config is in the volume, where the pods look for it."""
    for name in ("target", "draft"):
        section = applications_of(config).section(name)
        assert section["model_path"] == job[name.upper()]
        assert section["revision"] == job[f"{name.upper()}_REVISION"]
        assert re.fullmatch("[0-9a-f]{40}", section["revision"])
    pod = {entry["name"]: entry["value"] for entry in environment}
    assert pod["HF_HOME"] == job["HF_HOME"]
    assert pod["HF_HUB_OFFLINE"] == "1", "the volume is read-only, and the network policy is closed"


def without_keys(config: Tree) -> Tree:
    """The config without the one thing that a cluster adds, its keys."""
    router = applications_of(config).section("router")
    assert router.pop("api_keys_file") == "/secrets/api-keys/keys"
    return config


def groups(service: Tree) -> dict[str, Tree]:
    return {group["groupName"]: group for group in cluster(service)["workerGroupSpecs"]}


def cluster(service: Tree) -> Tree:
    return service["spec"]["rayClusterConfig"]


def overrides(service: Tree) -> dict[str, Tree]:
    """Options of deployments, by their names, as the service's config sets them."""
    config = yaml.safe_load(service["spec"]["serveConfigV2"])
    return {each["name"]: each for each in applications_of(config).overrides}


def check_serve_config(text: str) -> AppConfig:
    schema = ServeDeploySchema.model_validate(yaml.safe_load(text))
    for application in schema.applications:
        for deployment in application.deployments:
            if deployment.is_autoscaling_configured():
                AutoscalingConfig.model_validate(deployment.autoscaling_config)
    return read_serve_text(text).config


# --- against configs/ and Ray -------------------------------------------------------------------


def test_the_service_runs_the_production_config_with_keys() -> None:
    service = ray_service()
    text = service["spec"]["serveConfigV2"]
    ours = without_keys(yaml.safe_load(text))
    assert ours == yaml.safe_load((ROOT / "configs" / "prod.yaml").read_text())
    check_serve_config(text)
    [container] = cluster(service)["headGroupSpec"]["template"]["spec"]["containers"]
    check_models(ours, fetched_models(), container["env"])


def test_one_gpu_runs_its_config_with_keys_at_every_address() -> None:
    overlay = K8S / "overlays" / "one-gpu"
    [patch] = documents(overlay / "rayservice.yaml")
    ours = without_keys(yaml.safe_load(patch["spec"]["serveConfigV2"]))
    config = yaml.safe_load((ROOT / "configs" / "single-gpu.yaml").read_text())
    assert HTTPOptionsSchema(**ours["http_options"]).host == "0.0.0.0"
    assert config["http_options"].pop("host") == "127.0.0.1"
    assert ours == config
    check_serve_config(patch["spec"]["serveConfigV2"])
    [group] = groups(patch).values()
    [container] = group["template"]["spec"]["containers"]
    check_models(ours, fetched_models(overlay), container["env"])


def test_one_gpu_has_the_environment_that_was_tried() -> None:
    """`tests/integration/served/test_throughput.py` takes that of the base."""
    [patch] = documents(K8S / "overlays" / "one-gpu" / "rayservice.yaml")
    [ours] = [group["template"]["spec"] for group in groups(patch).values()]
    theirs = cluster(ray_service())["headGroupSpec"]["template"]["spec"]
    assert ours["containers"][0]["env"] == theirs["containers"][0]["env"]


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("max_replicas_per_node: 1", "max_replicas_per_node: lots"),
        ("name: Router", "nam: Router"),
        ("tensor_parallel_size: 4", "tensor_paralel_size: 4"),
        ("max_replicas: 2", "max_replicas: 0"),
    ],
)
def test_a_corrupted_serve_config_is_refused(old: str, new: str) -> None:
    text = ray_service()["spec"]["serveConfigV2"]
    assert old in text
    with pytest.raises((ValidationError, ValueError)):
        check_serve_config(text.replace(old, new, 1))


def test_every_place_a_deployment_asks_for_exists() -> None:
    """Labels, and machines that are large enough for one replica."""
    service = ray_service()
    for deployment in overrides(service).values():
        selectors = deployment.get("placement_group_bundle_label_selector") or [
            deployment["ray_actor_options"]["label_selector"]
        ]
        for selector in selectors:
            [group] = [
                group
                for group in groups(service).values()
                if node_labels_match_selector(group["labels"], selector)
            ]
            bundles = deployment.get("placement_group_bundles") or [
                {"CPU": deployment["ray_actor_options"]["num_cpus"]}
            ]
            container = group["template"]["spec"]["containers"][0]
            limits = container["resources"]["limits"]
            assert sum(bundle["CPU"] for bundle in bundles) <= int(limits["cpu"])
            num_gpus = sum(bundle.get("GPU", 0) for bundle in bundles)
            assert num_gpus == int(limits.get("nvidia.com/gpu", 0))


def test_one_rank_has_one_bundle() -> None:
    service = ray_service()
    models = check_serve_config(service["spec"]["serveConfigV2"]).models
    for name, deployment in (("target", "Target"), ("draft", "Draft")):
        bundles = overrides(service)[deployment]["placement_group_bundles"]
        assert len(bundles) == models[name].tensor_parallel_size


def test_replicas_at_their_most_find_machines() -> None:
    service = ray_service()
    deployments = overrides(service)
    most = {name: d["autoscaling_config"]["max_replicas"] for name, d in deployments.items()}
    for kind in ("Target", "Draft"):  # one replica a machine
        assert most[kind] == groups(service)[kind.lower()]["maxReplicas"]
    router = groups(service)["router"]
    limits = router["template"]["spec"]["containers"][0]["resources"]["limits"]
    has = {"num_cpus": int(limits["cpu"]), "memory": int(router["rayStartParams"]["memory"])}
    for kind, of_a_pod in has.items():
        names = ("Router", "Constraint")
        each = {name: deployments[name]["ray_actor_options"][kind] for name in names}
        asked = sum(most[name] * each[name] for name in each)
        assert asked <= router["maxReplicas"] * of_a_pod
        assert sum(each.values()) + each["Router"] <= of_a_pod


def test_a_pod_holds_one_router_and_one_constraint_replica() -> None:
    """A lost machine takes one of each. None has a surge, which would wait for further machines."""
    service = ray_service()
    deployments = overrides(service)
    router = groups(service)["router"]
    for name in ("Router", "Constraint"):
        scaling = deployments[name]["autoscaling_config"]
        assert deployments[name]["max_replicas_per_node"] == 1
        assert deployments[name].get("max_surge_percent", 0) == 0
        assert scaling["min_replicas"] <= router["minReplicas"]
    for spread in router["template"]["spec"]["topologySpreadConstraints"]:
        assert spread["nodeTaintsPolicy"] == "Honor", "GPU nodes are no empty ones"
        assert spread["matchLabelKeys"] == ["ray.io/cluster"], (
            "a second cluster is spread by itself"
        )
        assert scaling["max_replicas"] <= router["maxReplicas"]


# --- monitoring -------------------------------------------------------------------------------


def ray_name(metric: Declaration) -> str:
    """The name of a metric's series once Ray exports it."""
    ending = "_bucket" if metric.kind == "histogram" else ""
    return f"ray_{metric.printed.replace(':', '_')}{ending}"


def alert_expressions() -> dict[str, str]:
    """PromQL by the name of the alert, or of the series that alerts ask for, each in one line."""
    _, rules = documents(K8S / "base" / "monitoring.yaml")
    named = [rule for group in rules["spec"]["groups"] for rule in group["rules"]]
    return {rule.get("alert") or rule["record"]: " ".join(rule["expr"].split()) for rule in named}


def sums_without_fallback(expression: str) -> list[str]:
    """Sums of counters that are nothing, in place of 0, while there is no series yet."""
    found = []
    for match in re.finditer(r"\bsum ?\(", expression):
        depth, end = 1, match.end()
        while depth:
            depth += {"(": 1, ")": -1}.get(expression[end], 0)
            end += 1
        taken = expression[match.start() : end]
        is_guarded = expression[: match.start()].endswith("(") and expression[end:].startswith(
            " or vector(0))"
        )
        if "_total" in taken and not is_guarded:
            found.append(taken)
    return found


def test_a_sum_of_a_counter_is_0_before_the_counter_has_a_series() -> None:
    bare = "sum(rate(a_total[5m])) / (sum(rate(b_total[5m])) or vector(0))"
    assert sums_without_fallback(bare) == ["sum(rate(a_total[5m]))"]
    for alert, expression in alert_expressions().items():
        assert sums_without_fallback(expression) == [], alert


def test_errors_of_clients_and_full_queues_are_no_errors_of_ours() -> None:
    codes, kinds = set(), [errors.InvalidRequest]
    while kinds:
        kind = kinds.pop()
        if kind.__module__ == errors.__name__:  # those of the HTTP side end before they are counted
            codes.add(kind.code)
        kinds += kind.__subclasses__()
    for window in ("5m", "1h"):
        expression = alert_expressions()[f"outrider:request_errors:ratio_rate{window}"]
        [counted] = re.findall(r"request_failure_total\{(.+?)\}", expression)
        excluded = {
            code for listed in re.findall(r'code!~"(.+?)"', counted) for code in listed.split("|")
        }
        assert excluded == codes | {errors.Overloaded.code, CLIENT_GONE}
        assert set(re.findall(r"\[(\w+)\]", expression)) == {window}


def test_alerts_ask_for_series_that_are_recorded() -> None:
    asked = {
        name
        for expression in alert_expressions().values()
        for name in re.findall(r"\boutrider:[\w:]+", expression)
    }
    assert asked == {name for name in alert_expressions() if name.startswith("outrider:")}


def test_alerts_ask_for_what_is_measured() -> None:
    measured = {ray_name(one) for metrics in declared().values() for one in metrics}
    asked = {
        alert: set(re.findall(r"ray_(?:vllm|outrider)_\w+", expression))
        for alert, expression in alert_expressions().items()
    }
    for alert, names in asked.items():
        assert names <= measured, alert
    measures = ("kv_cache_usage_perc", "waiting_tokens", "pass_seconds", "queue_length")
    for measure in (*measures, "speculation_gain", "task_rounds"):
        assert any(measure in name for names in asked.values() for name in names), measure


# --- security ---------------------------------------------------------------------------------


def pod_specs(service: Tree) -> dict[str, Tree]:
    specs = {name: group["template"]["spec"] for name, group in groups(service).items()}
    specs["head"] = cluster(service)["headGroupSpec"]["template"]["spec"]
    [job] = documents(K8S / "models" / "fetch-models.yaml")
    specs["fetch-models"] = job["spec"]["template"]["spec"]
    return specs


def test_every_pod_is_restricted() -> None:
    for name, spec in pod_specs(ray_service()).items():
        assert spec["securityContext"]["runAsNonRoot"] is True, name
        assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}, name
        assert spec["automountServiceAccountToken"] is (name == "head"), name
        for container in spec["containers"]:
            context = container["securityContext"]
            assert context["allowPrivilegeEscalation"] is False, name
            assert context["capabilities"] == {"drop": ["ALL"]}, name
            assert container["resources"]["limits"]["memory"], name


def test_ray_asks_for_a_token_and_nobody_outside_reaches_it() -> None:
    service = ray_service()
    assert cluster(service)["authOptions"] == {"mode": "token"}
    cluster_policy, _ = documents(K8S / "base" / "network.yaml")
    allowed = {
        rule["from"][0]["namespaceSelector"]["matchLabels"]["kubernetes.io/metadata.name"]: {
            port["port"] for port in rule["ports"]
        }
        for rule in cluster_policy["spec"]["ingress"]
        if "ports" in rule
    }
    assert allowed["gateway"] == {8000}
    assert allowed["monitoring"] == {8080}
    config = check_serve_config(service["spec"]["serveConfigV2"])
    assert config.router.api_keys_file


def test_no_secret_is_in_the_manifests() -> None:
    for path in K8S.rglob("*.yaml"):
        assert all(document["kind"] != "Secret" for document in documents(path)), path


# --- against KubeRay ----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def definition() -> Tree:
    folder = os.environ.get("KUBERAY_CRDS")
    if not folder:
        pytest.skip("KUBERAY_CRDS does not point at KubeRay's custom resource definitions")
    content = yaml.safe_load((Path(folder) / "ray.io_rayservices.yaml").read_text())
    [version] = [v for v in content["spec"]["versions"] if v["name"] == "v1"]
    return strict(version["schema"]["openAPIV3Schema"])


def strict(schema: Any) -> Any:
    """The schema with unknown keys as errors, which the API server would drop silently."""
    if isinstance(schema, list):
        return [strict(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    result = {key: strict(value) for key, value in schema.items()}
    is_open = "additionalProperties" in schema or "x-kubernetes-preserve-unknown-fields" in schema
    if "properties" in schema and schema.get("type") == "object" and not is_open:
        if schema["properties"].get("metadata") == {"type": "object"}:
            result["properties"]["metadata"] = {"type": "object"}
        result["additionalProperties"] = False
    return result


def check_ray_service(definition: Tree, service: Tree) -> None:
    jsonschema.Draft202012Validator(definition).validate(service)


def test_the_service_is_what_kuberay_defines(definition: Tree) -> None:
    check_ray_service(definition, ray_service())


Damage = Callable[[Tree], None]


def misspell_groups(service: Tree) -> None:
    cluster(service)["workerGroupSpec"] = cluster(service).pop("workerGroupSpecs")


def number_as_text(service: Tree) -> None:
    groups(service)["draft"]["maxReplicas"] = "two"


def drop_the_head(service: Tree) -> None:
    del cluster(service)["headGroupSpec"]


def unknown_auth(service: Tree) -> None:
    cluster(service)["authOptions"]["mode"] = "none"


def misplace_labels(service: Tree) -> None:
    groups(service)["draft"]["template"]["label"] = {}


@pytest.mark.parametrize(
    "damage", [misspell_groups, number_as_text, drop_the_head, unknown_auth, misplace_labels]
)
def test_a_corrupted_service_is_refused(definition: Tree, damage: Damage) -> None:
    service = copy.deepcopy(ray_service())
    damage(service)
    with pytest.raises(jsonschema.ValidationError):
        check_ray_service(definition, service)


# --- built ------------------------------------------------------------------------------------


def built(folder: str) -> list[Tree]:
    if shutil.which("kubectl") is None:
        pytest.skip("kubectl is not installed")
    result = subprocess.run(
        ["kubectl", "kustomize", str(K8S / folder)],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    return [document for document in yaml.safe_load_all(result.stdout) if document]


def only(resources: list[Tree], kind: str) -> Tree:
    [found] = [resource for resource in resources if resource["kind"] == kind]
    return found


@pytest.mark.parametrize("folder", ["base", "overlays/one-gpu"])
def test_kustomize_builds_it_with_one_image(folder: str, definition: Tree) -> None:
    resources = built(folder)
    service = only(resources, "RayService")
    check_ray_service(definition, service)
    for name, spec in pod_specs(service).items():
        if name == "fetch-models":
            continue
        images = {container["image"] for container in spec["containers"]}
        assert images == {"registry.example.com/outrider:0.1.0"}, name
    assert all(
        resource["metadata"].get("namespace") == "outrider"
        for resource in resources
        if resource["kind"] != "Namespace"
    )


def test_one_gpu_asks_for_one_gpu() -> None:
    [group] = groups(only(built("overlays/one-gpu"), "RayService")).values()
    limits = group["template"]["spec"]["containers"][0]["resources"]["limits"]
    assert limits["nvidia.com/gpu"] == "1"
