"""`build`: from the config tree to the Serve application. The only place that binds deployments.

Defaults of placement and limits that follow from the tree are set here; the `deployments:`
section of a Serve config file overrides them by deployment name (Router, Target, Draft,
Constraint). Annotations in this module are real classes on purpose: Serve converts `args` only
then, so `from __future__ import annotations` must not be added.
"""

from typing import Any

from ray import serve
from ray.serve import Application
from ray.serve.config import BackpressureConfig, RequestRouterConfig

from deployments.config import (
    AppConfig,
    GrammarServiceConfig,
    LinkConfig,
    ModelConfig,
)
from deployments.constraint import ConstraintReplica
from deployments.engine import EngineReplica
from deployments.leader import EngineKind
from deployments.model_files import check_models, with_shared_vocabulary
from deployments.router import Router

_COORDINATOR_CPUS = 0.1
_SPARE_REQUESTS = 64
_HEALTH_PERIOD_S = 1.0
_ROUTER_STALL_TIMEOUT_S = 10.0  # a router silent for longer is replaced
_HEALTH_STRIKES = 3  # checks in a row that Serve lets fail before it replaces a replica; fixed
_LEASE_ROUTER = "deployments.lease_router:LeaseRouter"
_QUIET = {"enable_access_log": False}  # a line and 0.3 ms per call otherwise


def build(args: AppConfig) -> Application:
    """The whole service, ready for `serve run` or `serve deploy`.

    Raises:
        ValueError: a model folder is missing or draft and target do not fit together; the
            message names the config key.
    """
    config = args.resolved()
    check_models(config)
    config = with_shared_vocabulary(config)
    target = bind_engine("Target", "target", config.target, config.link)
    draft = (
        None if config.draft is None else bind_engine("Draft", "draft", config.draft, config.link)
    )
    constraint = bind_constraint(config.constraint, config.link, config.target.model_path)
    router: Any = Router
    num_admitted = config.router.max_sessions + config.router.max_queued_sessions
    return router.options(
        # Room beyond what is admitted, so that the router itself can answer 429 and /health.
        max_ongoing_requests=num_admitted + _SPARE_REQUESTS,
        max_queued_requests=num_admitted,
        # Beyond even that Serve itself refuses, with the words of the router.
        backpressure_config=BackpressureConfig(status_code=429, retry_after_s=1),
        health_check_period_s=_HEALTH_PERIOD_S,
        health_check_timeout_s=_ROUTER_STALL_TIMEOUT_S / _HEALTH_STRIKES,
    ).bind(config.router, config.link, draft, target, constraint)


def bind_engine(name: str, kind: EngineKind, model: ModelConfig, link: LinkConfig) -> Application:
    """One Draft or Target deployment; a bundle per rank, the coordinator shares the first."""
    bundle: dict[str, float] = {"CPU": 1}
    if model.device.startswith("cuda"):
        bundle["GPU"] = 1
    return serve.deployment(
        name=name,
        max_ongoing_requests=model.max_sessions,
        ray_actor_options={"num_cpus": _COORDINATOR_CPUS},
        placement_group_bundles=[dict(bundle) for _ in range(model.tensor_parallel_size)],
        placement_group_strategy="STRICT_PACK",
        **_supervision(model.stall_timeout_s),
        logging_config=_QUIET,
    )(EngineReplica).bind(kind, model, link)


def bind_constraint(
    service: GrammarServiceConfig, link: LinkConfig, model_path: str
) -> Application:
    """The Constraint deployment for the vocabulary of the checkpoint at `model_path`."""
    return serve.deployment(
        name="Constraint",
        max_ongoing_requests=service.max_sessions,
        ray_actor_options={"num_cpus": _COORDINATOR_CPUS},
        **_supervision(service.stall_timeout_s),
        logging_config=_QUIET,
    )(ConstraintReplica).bind(service, link, model_path)


def _supervision(stall_timeout_s: float) -> dict[str, Any]:
    """Options that make Serve replace a replica whose process is silent for `stall_timeout_s`.

    Serve kills the old one when it has not ended by itself `graceful_shutdown_timeout_s` later;
    its replacement starts before that.
    """
    return {
        "health_check_period_s": _HEALTH_PERIOD_S,
        "health_check_timeout_s": stall_timeout_s / _HEALTH_STRIKES,
        "graceful_shutdown_timeout_s": 20,
        "graceful_shutdown_wait_loop_s": 0.5,
        "request_router_config": RequestRouterConfig.model_validate(
            {"request_router_class": _LEASE_ROUTER}
        ),
    }
