"""An application that starts fast, for tests of what Serve does with a `user_config`."""

from typing import Any

from ray.serve import Application

from deployments.app import bind_constraint
from deployments.config.schema import GrammarServiceConfig
from deployments.config.sections.models import LinkConfig
from tests.harness.local import DEMO


def build(args: dict[str, Any]) -> Application:
    """The constraint service alone."""
    return bind_constraint(
        GrammarServiceConfig(), LinkConfig(host="loopback"), str(DEMO / "target")
    )
