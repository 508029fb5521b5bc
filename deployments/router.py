"""The ingress deployment: builds what HTTP needs from the config and Serve handles, and serves it.

Thin: routes are in `http.py`, the algorithm in the package `router`. A replica holds no state that
outlives its streams, so there may be any number of them. Its own health does not depend on the
engines (a dead target would otherwise restart every router); GET /health does.
"""

from __future__ import annotations

import asyncio
import logging
import time
from typing import Any

from fastapi import FastAPI
from ray import serve
from ray.serve.handle import DeploymentHandle

from deployments.admission import AdmittingGenerator
from deployments.config import RouterConfig
from deployments.health import HealthProbe
from deployments.http import HttpService, create_app
from deployments.link_client import LinkClient
from deployments.pools import constraint_pool, engine_pool
from deployments.requests import ServedModel
from models.tokenizer import Tokenizer
from router.engine_session import EngineLimits
from router.generation import Generator
from router.generator import SpeculativeGenerator
from router.ports import ConstraintPool, EnginePool
from router.session import Services, SpeculationLimits

logger = logging.getLogger("ray.serve")  # the one that Serve shows to the operator

_HEALTH_TIMEOUT_S = 10.0
_READY_PAUSE_S = 0.5
_READY_LIMIT_S = 900.0  # engines may load for long; the line is not worth waiting for longer


def build_service(
    config: RouterConfig,
    *,
    target: EnginePool,
    draft: EnginePool | None,
    constraint: ConstraintPool | None,
) -> HttpService:
    """What the routes need, over given pools. Call it in the event loop that will serve.

    Args:
        config: a resolved one: `tokenizer_path` and `max_model_len` are filled in.
        target: who verifies.
        draft: who guesses ahead; None: every session runs k = 0.
        constraint: who guards grammars; None: requests with one are refused.

    Raises:
        ValueError: the tokenizer cannot be loaded.
    """
    tokenizer = Tokenizer.load(config.tokenizer_path)
    services = Services(
        target_pool=target,
        draft_pool=draft,
        constraint_pool=constraint,
        speculation=_speculation_limits(config),
        limits=_engine_limits(config),
    )
    generator: Generator = SpeculativeGenerator(services, max_model_len=config.max_model_len)
    admitting = AdmittingGenerator(
        generator,
        max_sessions=config.max_sessions,
        max_queued=config.max_queued_sessions,
        queue_wait_s=config.timeouts.queue_wait_s,
    )
    model = ServedModel(
        name=config.model_name,
        tokenizer=tokenizer,
        max_model_len=config.max_model_len,
        created=int(time.time()),
        default_max_tokens=config.default_max_tokens,
        max_tokens_limit=config.max_tokens_limit,
        max_num_speculative_tokens=config.speculation.max_num_speculative_tokens,
    )
    return HttpService(
        model=model,
        generator=admitting,
        # Past the admission: whether the target answers is not a question of how many wait.
        health=HealthProbe(generator, tokenizer, timeout_s=_HEALTH_TIMEOUT_S),
        body_limit_bytes=config.body_limit_bytes,
        send_timeout_s=config.timeouts.token_gap_s,
    )


def _speculation_limits(config: RouterConfig) -> SpeculationLimits:
    speculation = config.speculation
    asked = speculation.num_speculative_tokens
    return SpeculationLimits(
        enabled=speculation.enabled,
        num_speculative_tokens=None if asked == "adaptive" else asked,
        max_speculative_tokens=speculation.max_num_speculative_tokens,
        run_on_tokens=speculation.run_on_tokens,
    )


def _engine_limits(config: RouterConfig) -> EngineLimits:
    timeouts = config.timeouts
    return EngineLimits(
        lease_timeout_s=timeouts.queue_wait_s,
        first_answer_timeout_s=timeouts.first_token_s,
        answer_timeout_s=timeouts.token_gap_s,
        propose_timeout_s=timeouts.draft_ms / 1e3,
    )


@serve.deployment(name="Router", logging_config={"enable_access_log": False})
@serve.ingress()
class Router:
    """A replica of the HTTP side.

    Args:
        config: the resolved `router` section of the config.
        draft: handle of the Draft deployment, if there is one.
        target: handle of the Target deployment.
        constraint: handle of the Constraint deployment.
    """

    def __init__(
        self,
        config: RouterConfig,
        draft: DeploymentHandle[Any] | None,
        target: DeploymentHandle[Any],
        constraint: DeploymentHandle[Any],
    ) -> None:
        self._links = LinkClient()
        self._service = build_service(
            config,
            target=engine_pool(target, self._links),
            draft=None if draft is None else engine_pool(draft, self._links),
            constraint=constraint_pool(constraint, self._links),
        )
        self._announcing = asyncio.get_running_loop().create_task(self._announce())

    def __serve_build_asgi_app__(self) -> FastAPI:
        """What Serve serves (late-bound ingress)."""
        return create_app(self._service)

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
