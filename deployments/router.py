"""The ingress deployment: pools over Serve handles, behind the HTTP routes.

Thin: routes are in `http.py`, their wiring in `service.py`, the algorithm in package `router`.
A replica holds no state that outlives its streams, so there may be any number of them. Its own
health does not depend on the engines (a dead target would otherwise restart every router);
GET /health does.
"""

from __future__ import annotations

import asyncio
import logging
import time
from typing import Any

from fastapi import FastAPI
from ray import serve
from ray.serve.handle import DeploymentHandle

from deployments.config import LinkConfig, RouterConfig
from deployments.http import create_app
from deployments.link_client import LinkClient
from deployments.logs import join_serve
from deployments.pools import constraint_pool, engine_pool
from deployments.ray_meters import RayMirror
from deployments.service import build_service

logger = logging.getLogger("ray.serve")  # the one that Serve shows to the operator

_READY_PAUSE_S = 0.5
_READY_LIMIT_S = 900.0  # engines may load for long; the line is not worth waiting for longer


@serve.deployment(name="Router")
@serve.ingress()
class Router:
    """A replica of the HTTP side.

    Args:
        config: the resolved `router` section of the config.
        link: limits of the links.
        draft: handle of the Draft deployment, if there is one.
        target: handle of the Target deployment.
        constraint: handle of the Constraint deployment.
    """

    def __init__(
        self,
        config: RouterConfig,
        link: LinkConfig,
        draft: DeploymentHandle[Any] | None,
        target: DeploymentHandle[Any],
        constraint: DeploymentHandle[Any],
    ) -> None:
        join_serve()
        self._links = LinkClient(high_water_mark=link.high_water_mark)
        self._service = build_service(
            config,
            target=engine_pool(target, self._links),
            draft=None if draft is None else engine_pool(draft, self._links),
            constraint=constraint_pool(constraint, self._links),
            mirror=RayMirror(),
        )
        self._announcing = asyncio.get_running_loop().create_task(self._announce())

    def __serve_build_asgi_app__(self) -> FastAPI:
        """What Serve serves (late-bound ingress)."""
        return create_app(self._service, sends_request_id=False)  # the proxy does

    async def __del__(self) -> None:
        self._announcing.cancel()
        await self._links.close()

    async def _announce(self) -> None:
        """Say once how to reach the service, when it has answered for the first time."""
        end = time.monotonic() + _READY_LIMIT_S
        while not (await self._service.health.check()).is_healthy:
            if time.monotonic() > end:
                return
            await asyncio.sleep(_READY_PAUSE_S)
        url = await asyncio.to_thread(_root_url)
        logger.info(ready_line(url, self._service.model.name))


def ready_line(url: str, model_name: str) -> str:
    """One line with the URL and a command to try it with."""
    return (
        f"ready at {url} - try: curl {url}/v1/chat/completions -H 'content-type: application/json' "
        f'-d \'{{"model": "{model_name}", "messages": [{{"role": "user", "content": "Hello"}}]}}\''
    )


def _root_url() -> str:
    """Where Serve's HTTP proxy listens; Serve has no public way to ask for it."""
    from ray.serve.context import _get_global_client

    client = _get_global_client(raise_if_no_controller_running=False)
    return "http://127.0.0.1:8000" if client is None else str(client.root_url)
