"""An endpoint picker finds the router pods, and reads metrics that they have."""

from __future__ import annotations

import re

from tests.k8s.test_manifests import K8S, ROOT, Tree, built, only
from tests.k8s.test_operations import serve_config, templates


def test_it_is_of_the_pods_that_clients_reach() -> None:
    base, ours = built("base"), built("inference-pool")
    pool: Tree = only(ours, "InferencePool")["spec"]
    wanted = pool["selector"]["matchLabels"].items()
    chosen = [name for name, pod in templates(base) if wanted <= pod["metadata"]["labels"].items()]
    assert chosen == ["router"]
    http = serve_config(base)["http_options"]
    assert pool["targetPorts"] == [{"number": http.get("port", 8000)}]
    [rule] = only(ours, "HTTPRoute")["spec"]["rules"]
    assert rule["backendRefs"] == [
        {"group": "inference.networking.k8s.io", "kind": "InferencePool", "name": "outrider"}
    ]
    assert rule["timeouts"]["request"] == f"{http['request_timeout_s']}s"
    [reached] = only(ours, "NetworkPolicy")["spec"]["ingress"]
    assert reached["ports"] == [{"protocol": "TCP", "port": pool["targetPorts"][0]["number"]}]


def test_what_the_picker_reads_is_on_the_page_of_metrics() -> None:
    names = re.findall(r"vllm:\w+", (K8S / "inference-pool" / "kustomization.yaml").read_text())
    assert len(names) == 3
    known = (ROOT / "deployments" / "docs" / "metrics.md").read_text(encoding="utf-8")
    for name in names:
        assert f"| `{name}` | gauge |" in known
