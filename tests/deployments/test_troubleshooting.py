"""The troubleshooting page names metrics, config keys and messages that exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from pydantic import BaseModel

from deployments.api.transport.settings import HttpConfig
from deployments.config.schema import AppConfig, RouterConfig
from deployments.config.sections.models import ModelConfig
from router.limits import SessionLimits, SpeculationLimits
from tests.k8s.test_dashboard import exported

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "deployments" / "TROUBLESHOOTING.md").read_text(encoding="utf-8")
SECTIONS: dict[str, type[BaseModel]] = {
    "draft": ModelConfig,
    "target": ModelConfig,
    "router": RouterConfig,
    "http": HttpConfig,
    "timeouts": SessionLimits,
    "speculation": SpeculationLimits,
}


@pytest.mark.parametrize("name", sorted(set(re.findall(r"\b(?:vllm|outrider):\w+", PAGE))))
def test_a_metric_that_is_named_is_exported(name: str) -> None:
    assert f"ray_{name.replace(':', '_')}" in exported()


@pytest.mark.parametrize(
    "span", sorted(set(re.findall(r"`((?:draft|target|router)\.[\w.]+)`", PAGE)))
)
def test_a_key_that_is_named_exists(span: str) -> None:
    section, *rest = span.split(".")
    assert section in AppConfig.model_fields
    *inner, key = rest
    assert key in SECTIONS[inner[-1] if inner else section].model_fields


@pytest.mark.parametrize(
    "message",
    [
        "waited for room on the model",
        "long bodies are being read",
        "all replicas are busy",
        "replica granted a lease",
    ],
)
def test_a_message_that_is_quoted_is_written(message: str) -> None:
    assert message in PAGE
    sources = [*ROOT.glob("deployments/**/*.py"), *ROOT.glob("router/**/*.py")]
    assert any(message in path.read_text(encoding="utf-8") for path in sources)
