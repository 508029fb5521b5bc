"""The monitor: metrics and health of a service through Serve's proxy although the service is full.

It is an application of its own, because Serve's proxy counts waiting requests per deployment. When
the Router's queue is full, the proxy refuses all requests of its routes, GET /metrics and GET
/health included. The monitor has a route, a queue and a process of its own. It asks the replicas by
broadcasts, which stand in no queue. It is an entry of a Serve config file:

    - name: monitor
      route_prefix: /monitor
      import_path: deployments.monitor:build
      args: {applications: [outrider, target, draft]}

Annotations in this module are real classes on purpose. Serve converts `args` only then, so `from
__future__ import annotations` must not be added.
"""

import asyncio
import logging
from itertools import product
from typing import Annotated, Any

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

    applications: list[Annotated[str, Field(min_length=1, max_length=256)]] = Field(
        default=["outrider"],
        min_length=1,
        max_length=64,
        description="names of the applications that are watched, the routers' first",
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
    application: Application = deployment.bind(args.applications)
    return application


class Monitor:
    """Asks every replica of a service, at most once a second.

    Args:
        applications: names of those that are watched, the routers' first; they may start later.
    """

    def __init__(self, applications: list[str]) -> None:
        self._applications = applications
        self._handles: dict[tuple[str, str], DeploymentHandle[Any]] = {}
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
        handles = [await self._handle(*names) for names in await self._names()]
        found = [handle for handle in handles if handle is not None]
        return await text_of(found, timeout_s=_METRICS_TIMEOUT_S)

    async def _names(self) -> list[tuple[str, str]]:
        """Return the applications' deployments that Serve knows now, with their applications."""
        try:
            async with asyncio.timeout(_LOOKUP_TIMEOUT_S):
                status = await asyncio.to_thread(serve.status)
        except (TimeoutError, *CALL_ERRORS) as error:
            logger.debug("no status of the applications: %s", type(error).__name__)
            return list(product(self._applications, _DEPLOYMENTS))
        known = {name: status.applications.get(name) for name in self._applications}
        return [
            (name, deployment)
            for name, found in known.items()
            for deployment in (_DEPLOYMENTS if found is None else found.deployments)
        ]

    async def _check(self) -> HealthStatus:
        handle = await self._handle(self._applications[0], _ROUTER)
        answers: list[HealthStatus] = []
        if handle is not None:
            answers = await answers_of(handle, "health_status", timeout_s=_HEALTH_TIMEOUT_S)
        missing = HealthStatus(
            status="unavailable", model="", reason="no router answers", round_ms=0.0
        )
        healthy = [answer for answer in answers if answer.status == "ok"]
        return (healthy or answers or [missing])[0]

    async def _handle(self, application: str, name: str) -> DeploymentHandle[Any] | None:
        """Return the handle of a deployment; None if there is none of this name, or not yet."""
        key = application, name
        if key not in self._handles:
            lookup = asyncio.to_thread(serve.get_deployment_handle, name, application)
            try:
                async with asyncio.timeout(_LOOKUP_TIMEOUT_S):
                    self._handles[key] = await lookup
            except (KeyError, TimeoutError, *CALL_ERRORS) as error:
                logger.debug("no handle of %s: %s", name, type(error).__name__)
        return self._handles.get(key)
