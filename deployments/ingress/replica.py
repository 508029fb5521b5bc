"""The ingress deployment: the HTTP routes, and their pools over Serve handles.

Thin: routes are in `api/http.py`, their wiring in `service.py`, the algorithm in package `router`.
A replica holds no state that outlives its streams, so there may be any number of them. Its own
health does not depend on the engines (a dead target would otherwise restart every router);
GET /health does.
"""

from __future__ import annotations

import asyncio
import logging
import time
from functools import partial
from pathlib import Path
from typing import Any

from ray import serve
from ray.serve.handle import DeploymentHandle
from ray.serve.schema import ReplicaRank
from starlette.applications import Starlette

from deployments.api.http import create_app
from deployments.api.schemas.answers import HealthStatus
from deployments.config.live_limits import changes_of, take_user_config, with_user_config
from deployments.config.schema import RouterConfig
from deployments.config.sections.models import LinkConfig
from deployments.ingress.pools import constraint_pool, engine_pool
from deployments.ingress.service import MetricsElsewhere, RouterService, TargetFacts
from deployments.link.client import LinkClient
from deployments.serve.heap import freeze_heap
from deployments.serve.logs import join_serve
from deployments.serve.meters import ray_mirror
from deployments.serve.page import Page, replica_name, text_of
from deployments.serve.private import root_url
from deployments.serve.spare import ready_now
from deployments.serve.timed_names import avoided
from deployments.serve.watchdog import start_watchdog
from models.fetch.hub import bring

logger = logging.getLogger("ray.serve")  # the one that Serve shows to the operator

_READY_PAUSE_S = 0.5
_PAGES_TIMEOUT_S = 2.0  # for the metrics of engines and constraint replicas
_READY_LIMIT_S = 900.0  # engines may load for long; the line is not worth waiting for longer


@serve.deployment(name="Router")
@serve.ingress()
class Router:
    """A replica of the HTTP side.

    Args:
        config: the resolved `router` section of the config.
        link: limits of the links.
        drafts: handles of the deployments of draft models, by the name of their pool.
        target: handle of the Target deployment.
        constraint: handle of the Constraint deployment.
        facts: what is known of the target.
    """

    def __init__(
        self,
        config: RouterConfig,
        link: LinkConfig,
        drafts: dict[str, DeploymentHandle[Any]],
        target: DeploymentHandle[Any],
        constraint: DeploymentHandle[Any],
        facts: TargetFacts,
    ) -> None:
        self._config = self._config_in_force = config
        self._draft_pools = tuple(drafts)
        self._is_serving = False
        join_serve()
        start_watchdog(of_serve=True)
        bring(Path(config.tokenizer_path), logger.info, weights=False)
        self._links = LinkClient(high_water_mark=link.high_water_mark)
        others = [target, *drafts.values(), constraint]
        engines = partial(engine_pool, links=self._links, prefix_aware=config.prefix_aware_leases)
        self._service = RouterService(
            config,
            target=engines(target, vocabulary=facts.vocabulary),
            drafts={pool: engines(handle) for pool, handle in drafts.items()},
            constraint=constraint_pool(constraint, self._links),
            facts=facts,
            elsewhere=MetricsElsewhere(
                ray_mirror, partial(text_of, others, timeout_s=_PAGES_TIMEOUT_S)
            ),
        )
        self._service.losses.on_lost = avoided().add
        loop = asyncio.get_running_loop()
        self._tasks = [
            loop.create_task(self._announce()),
            loop.create_task(self._service.publish_forever()),
        ]
        freeze_heap()

    def __serve_build_asgi_app__(self) -> Starlette:
        """Return the app that Serve serves (late-bound ingress)."""
        return create_app(self._service.http, sends_request_id=False)  # the proxy does

    async def reconfigure(self, user_config: Any, rank: ReplicaRank) -> None:
        """Called by Serve at the start and when `user_config` changes.

        It asks for `rank` because Serve then calls it as well when `user_config` is taken away.

        Raises:
            ValueError: the application is just being deployed with a `user_config` that is refused.
        """
        is_taken = await take_user_config(
            self._set_limits, user_config, "Router", is_serving=self._is_serving
        )
        self._is_serving = True
        self._service.metrics.set_refused(not is_taken)

    async def _set_limits(self, user_config: Any) -> None:
        config = with_user_config(self._config, user_config, self._draft_pools)
        changes = changes_of(self._config_in_force, config)
        self._service.set_limits(config)
        self._config_in_force = config
        if changes:
            logger.info("limits changed: %s", ", ".join(changes))

    async def record_replica_metadata(self) -> dict[str, float]:
        """Called by Serve when the replica is ready, for request routers."""
        return ready_now(self._config.spare)

    async def metrics_page(self) -> Page:
        """Return the replica's id and its instruments, for the page of the monitor."""
        text = self._service.http.metrics()
        return replica_name(), text

    async def health_status(self) -> HealthStatus:
        """Return this replica's answer to GET /health, for the monitor."""
        return await self._service.http.health.check()

    async def __del__(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.to_thread(self._service.close)
        await self._links.close()

    async def _announce(self) -> None:
        """Log once how to reach the service, when it has answered for the first time."""
        end = time.monotonic() + _READY_LIMIT_S
        while (await self._service.http.health.check()).status != "ok":
            if time.monotonic() > end:
                return
            await asyncio.sleep(_READY_PAUSE_S)
        url = await asyncio.to_thread(root_url, serve.get_replica_context().app_name)
        logger.info(ready_line(url, self._service.http.model.name))


def ready_line(url: str, model_name: str) -> str:
    """Return a line with the URL and a command to try it with."""
    return (
        f"ready at {url} - try: curl {url}/v1/chat/completions -H 'content-type: application/json' "
        f'-d \'{{"model": "{model_name}", "messages": [{{"role": "user", "content": "Hello"}}]}}\''
    )
