"""The Grafana dashboard asks for what is measured, with the labels that it has."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
import yaml
from ray.dashboard.consts import GPU_TAG_KEYS
from ray.dashboard.modules.reporter.reporter_agent import METRICS_GAUGES

from deployments.metrics import declared
from tests.k8s.test_manifests import K8S, ray_name

NAME = "dashboard.json"
GPU_METRICS = ("node_gpus_utilization", "node_gram_used", "node_gram_available")
METRIC = re.compile(r"ray_(?:vllm|outrider|node)_\w+")
BOARD = json.loads((K8S / "base" / NAME).read_text(encoding="utf-8"))
PANELS: list[dict[str, Any]] = BOARD["panels"]
SUBJECTS = (
    *("Latency against throughput", "First token", "k", "Acceptance", "Gain", "KV cache", "Queue"),
    *(
        "Rounds",
        "Rounds, predicted and actual",
        "Requests",
        "Engines",
        "Grammars",
        "Look-aheads",
        "GPUs",
    ),
)


def exported() -> dict[str, set[str]]:
    """Labels of each metric by the name under which Ray exports it."""
    found: dict[str, set[str]] = {}
    for metrics in declared().values():
        for one in metrics:
            labels = {*one.labels, "replica", "deployment", "application"}  # Serve's own
            found[ray_name(one)] = labels | ({"le"} if one.kind == "histogram" else set())
    # Ray's own, of each node and its GPUs.
    found |= {f"ray_{name}": set(GPU_TAG_KEYS) for name in METRICS_GAUGES if name in GPU_METRICS}
    return found


def queries() -> list[tuple[str, str, str]]:
    """Panel, PromQL and legend."""
    return [
        (panel["title"], target["expr"], target["legendFormat"])
        for panel in PANELS
        for target in panel["targets"]
    ]


def test_it_shows_what_operators_ask() -> None:
    assert {panel["title"] for panel in PANELS} >= set(SUBJECTS)
    assert all(panel["description"] and panel["targets"] for panel in PANELS)


@pytest.mark.parametrize(("title", "query", "legend"), queries())
def test_a_query_names_metrics_and_labels_that_exist(title: str, query: str, legend: str) -> None:
    known = exported()
    names = METRIC.findall(query)
    assert names
    assert set(names) <= set(known), title
    asked = {
        label.strip()
        for listed in re.findall(r"\b(?:by|ignoring) \((.*?)\)", query)
        for label in listed.split(",")
    }
    asked |= set(re.findall(r"[{,](\w+)=", query)) | set(re.findall(r"\{\{(\w+)\}\}", legend))
    for label in asked:
        assert any(label in known[name] for name in names), (title, label)


def test_the_variables_name_a_metric_and_a_label_that_exist() -> None:
    [query] = [one["definition"] for one in BOARD["templating"]["list"] if one["name"] == "model"]
    name, label = re.fullmatch(r"label_values\((\w+), (\w+)\)", query).groups()  # type: ignore[union-attr]
    assert label in exported()[name]


def test_panels_have_places_of_their_own() -> None:
    assert len({panel["id"] for panel in PANELS}) == len(PANELS)
    cells = [
        (place["x"] + column, place["y"] + row)
        for place in (panel["gridPos"] for panel in PANELS)
        for column in range(place["w"])
        for row in range(place["h"])
    ]
    assert len(set(cells)) == len(cells)
    assert max(x for x, _ in cells) < 24


def test_kustomize_hands_it_to_grafana() -> None:
    made = yaml.safe_load((K8S / "base" / "kustomization.yaml").read_text(encoding="utf-8"))
    [generator] = made["configMapGenerator"]
    assert generator["files"] == [NAME]
    assert generator["options"]["labels"] == {"grafana_dashboard": "1"}
