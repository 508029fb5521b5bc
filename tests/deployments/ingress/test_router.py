"""The ingress deployment, as far as it goes without a cluster."""

from __future__ import annotations

import json

from deployments.ingress.replica import Router, ready_line


def test_the_ready_line_can_be_pasted():
    line = ready_line("http://127.0.0.1:8000", "demo")
    assert "\n" not in line
    body = line[line.index("-d '") + 4 : line.rindex("'")]
    assert json.loads(body)["model"] == "demo"


def test_the_deployment_is_named_router():
    assert Router.name == "Router"  # type: ignore[attr-defined]  # `deployment` made it another class
