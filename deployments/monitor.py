"""The monitor: metrics and health of a service through Serve's proxy although the service is full.

It is an application of its own, because Serve's proxy counts waiting requests per deployment. When
the Router's queue is full, the proxy refuses all requests of its routes, GET /metrics and GET
/health included. The monitor has a route, a queue and a process of its own. It asks the replicas by
broadcasts, which stand in no queue. It is an entry of a Serve config file:

    - name: monitor
      route_prefix: /monitor
      import_path: deployments.monitor:build
      args: {application: outrider}

Annotations in this module are real classes on purpose. Serve converts `args` only then, so `from
__future__ import annotations` must not be added.
"""

import asyncio
import logging
from typing import Any

from pydantic import Field
from ray import serve
from ray.serve import Application
from ray.serve.config import RequestRouterConfig
from ray.serve.handle import DeploymentHandle
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from deployments.api.cached_value import CachedValue
from deployments.api.edge import json_response
from deployments.api.schemas.answers import HealthStatus
from deployments.serve.errors import CALL_ERRORS
from deployments.serve.instruments import CONTENT_TYPE
from deployments.serve.page import answers_of, text_of
from deployments.serve.private import REQUEST_ROUTER
from models.config import Section

logger = logging.getLogger("ray.serve")

_ROUTER = "Router"
_DEPLOYMENTS = (_ROUTER, "Target", "Draft", "Constraint")  # where Serve does not say
# Prometheus gives up after 10 s by itself; a busy router takes a second or two.
_METRICS_TIMEOUT_S = 5.0
_HEALTH_TIMEOUT_S = 15.0  # a router's own probe takes up to 10 s
_LOOKUP_TIMEOUT_S = 2.0


class MonitorConfig(Section):
    """`args` of the monitor's application."""

    application: str = Field(
        default="outrider",
        min_length=1,
        max_length=256,
        description="name of the application that is watched",
    )


def build(args: MonitorConfig) -> Application:
    """Build the monitor as a Serve application.

    It takes no CPU of its own from Ray's count.
    """
    deployment: Any = serve.deployment(
        name="Monitor",
        ray_actor_options={"num_cpus": 0},
        max_ongoing_requests=64,
        request_router_config=RequestRouterConfig.model_validate(
            {"request_router_class": REQUEST_ROUTER}
        ),
    )(serve.ingress()(Monitor))
    application: Application = deployment.bind(args.application)
    return application


class Monitor:
    """Asks every replica of an application, at most once a second.

    Args:
        application: the name of the application that is watched; it may start later.
    """

    def __init__(self, application: str) -> None:
        self._application = application
        self._handles: dict[str, DeploymentHandle[Any]] = {}
        self._metrics = CachedValue(self._metrics_page)
        self._health = CachedValue(self._check)

    def __serve_build_asgi_app__(self) -> Starlette:
        """Return the routes that Serve serves. None asks for a key, as the Router's do not."""
        routes = {"/metrics": self.metrics, "/health": self.health, "/readyz": self.health}
        app = Starlette(routes=[Route(path, endpoint) for path, endpoint in routes.items()])
        app.router.redirect_slashes = False
        return app

    async def metrics(self, _: Request) -> Response:
        """Prometheus' text: all metrics of all replicas, each with the label `replica`."""
        return Response(await self._metrics.get(), headers={"content-type": CONTENT_TYPE})

    async def health(self, _: Request) -> Response:
        """200 while at least one router is healthy, else 503 with a reason."""
        status = await self._health.get()
        code = 200 if status.status == "ok" else 503
        return json_response(status.to_json(), code)

    async def _metrics_page(self) -> bytes:
        handles = [await self._handle(name) for name in await self._names()]
        found = [handle for handle in handles if handle is not None]
        return await text_of(found, timeout_s=_METRICS_TIMEOUT_S)

    async def _names(self) -> list[str]:
        """Return the deployments of the application that Serve knows now."""
        try:
            async with asyncio.timeout(_LOOKUP_TIMEOUT_S):
                status = await asyncio.to_thread(serve.status)
        except (TimeoutError, *CALL_ERRORS) as error:
            logger.debug("no status of the application: %s", type(error).__name__)
            return list(_DEPLOYMENTS)
        found = status.applications.get(self._application)
        return list(_DEPLOYMENTS) if found is None else list(found.deployments)

    async def _check(self) -> HealthStatus:
        handle = await self._handle(_ROUTER)
        answers: list[HealthStatus] = []
        if handle is not None:
            answers = await answers_of(handle, "health_status", timeout_s=_HEALTH_TIMEOUT_S)
        missing = HealthStatus(
            status="unavailable", model="", reason="no router answers", round_ms=0.0
        )
        healthy = [answer for answer in answers if answer.status == "ok"]
        return (healthy or answers or [missing])[0]

    async def _handle(self, name: str) -> DeploymentHandle[Any] | None:
        """Return the handle of a deployment; None if there is none of this name, or not yet."""
        if name not in self._handles:
            lookup = asyncio.to_thread(serve.get_deployment_handle, name, self._application)
            try:
                async with asyncio.timeout(_LOOKUP_TIMEOUT_S):
                    self._handles[name] = await lookup
            except (KeyError, TimeoutError, *CALL_ERRORS) as error:
                logger.debug("no handle of %s: %s", name, type(error).__name__)
        return self._handles.get(name)
