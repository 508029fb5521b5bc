"""An application that starts fast, for tests of what Serve does with a `user_config`."""

from typing import Any

from local_service import DEMO
from ray.serve import Application

from deployments.app import bind_constraint
from deployments.config import LinkConfig
from deployments.grammar_config import GrammarServiceConfig


def build(args: dict[str, Any]) -> Application:
    """The constraint service alone."""
    return bind_constraint(
        GrammarServiceConfig(), LinkConfig(host="loopback"), str(DEMO / "target")
    )
