"""`build` and `build_model`: from a tree of values to a Serve application. Only here are
deployments bound.

`build_model` is for a model with an application of its own, which no key of another one touches.
Defaults of placement and limits that follow from the tree are set here. The `deployments:` section
of a Serve config file overrides them by deployment name (Router, Target, Draft, Constraint).
Annotations in this module are real classes on purpose. Serve converts `args` only then, so `from
__future__ import annotations` must not be added.
"""

from collections.abc import Mapping
from typing import Any, Self

from ray import serve
from ray.serve import Application
from ray.serve.config import BackpressureConfig, RequestRouterConfig

from deployments.config.check import CannotServe, refuse_unservable
from deployments.config.live_limits import ADMISSION_HEADROOM
from deployments.config.model_files import resolved, vocabulary_of_router, with_shared_vocabulary
from deployments.config.placement import COORDINATOR_CPUS, deployment_of, engine_placement
from deployments.config.schema import AppConfig, GrammarServiceConfig, RouterConfig
from deployments.config.sections.models import (
    TARGET,
    LinkConfig,
    ModelArgs,
    ModelConfig,
    Models,
    section_of_draft,
)
from deployments.constraint.replica import ConstraintReplica
from deployments.engine.rank import EngineKind
from deployments.engine.replica import EngineReplica
from deployments.ingress.replica import Router
from deployments.ingress.service import TargetFacts
from deployments.serve.older_first import PATH as OLDER_FIRST
from deployments.serve.private import REQUEST_ROUTER, handle_of
from deployments.serve.spare import spare_options
from deployments.serve.waiting_run import end_waiting_run
from models.heads.config import target_heads

_SPARE_REQUESTS = 64
_MODEL_NAME = RouterConfig().model_name  # a label of the metrics
_HEALTH_PERIOD_S = 1.0
_ROUTER_STALL_TIMEOUT_S = 10.0  # a router silent for longer is replaced
_HEALTH_STRIKES = 3  # checks in a row that Serve lets fail before it replaces a replica; fixed
# One event loop for Serve's part of a router and ours: each event would go from thread to thread.
_ONE_LOOP = {
    "RAY_SERVE_RUN_USER_CODE_IN_SEPARATE_THREAD": "0",
    "RAY_SERVE_RUN_ROUTER_IN_SEPARATE_LOOP": "0",
}
_LEASE_ROUTER = "deployments.serve.lease_router:LeaseRouter"


class _Deployed(Models):
    """A tree as Serve hands it over: plain values."""

    @classmethod
    def model_validate(cls, obj: Any, **options: Any) -> Self:
        """Validate a tree of plain values.

        Raises:
            CannotServe: names every key at fault.
        """
        try:
            return super().model_validate(obj, **options)
        except ValueError as error:
            if issubclass(cls, AppConfig):
                end_waiting_run()
            raise CannotServe(str(error)) from None


class DeployedConfig(_Deployed, AppConfig):
    """The tree of `build`."""


class DeployedModel(_Deployed, ModelArgs):
    """The tree of `build_model`."""


def build(args: DeployedConfig) -> Application:
    """Build the whole service, or all of it but the models that have applications of their own.

    Raises:
        CannotServe: GPUs, labels, model folders or memory are missing, or draft and target do not
            fit together; one sentence names them all.
    """
    try:
        refuse_unservable(args)
    except CannotServe:
        end_waiting_run()
        raise
    config = with_shared_vocabulary(resolved(args))
    name = config.router.model_name
    here = {
        section: _bind_model(section, model, config.link, name)
        for section, model in config.models_here.items()
    }
    engines: Mapping[str, Any] = here | {
        section: handle_of(deployment_of(section), application)
        for section, application in config.applications.items()
    }
    drafts = {pool: engines[section_of_draft(pool)] for pool in config.draft_pools}
    constraint = bind_constraint(config.constraint, config.link, config.target.model_path, name)
    facts = TargetFacts(
        heads=target_heads(config.target.heads, config.target.early_exit),
        vocabulary=vocabulary_of_router(config),
        adapters=tuple(config.target.lora_modules),
    )
    router: Any = Router
    num_admitted = config.router.max_sessions + config.router.max_queued_sessions
    return router.options(
        ray_actor_options={"num_cpus": COORDINATOR_CPUS, "runtime_env": {"env_vars": _ONE_LOOP}},
        # Room beyond what is admitted, so that the router itself can answer 429 and /health, also
        # when a user_config lets in more.
        max_ongoing_requests=ADMISSION_HEADROOM * num_admitted + _SPARE_REQUESTS,
        # The proxy counts those that it is about to hand over as well: a burst must not end there.
        max_queued_requests=num_admitted + _SPARE_REQUESTS,
        # The proxy answers requests beyond that: with the status and Retry-After of a full router,
        # but in plain text.
        backpressure_config=BackpressureConfig(status_code=429, retry_after_s=1.0),
        health_check_period_s=_HEALTH_PERIOD_S,
        health_check_timeout_s=_ROUTER_STALL_TIMEOUT_S / _HEALTH_STRIKES,
        request_router_config=_chosen_by(OLDER_FIRST if config.router.spare else REQUEST_ROUTER),
        **spare_options(config.router.spare),
    ).bind(
        config.router,
        config.link,
        drafts,
        engines[TARGET],
        constraint,
        facts,
    )


def build_model(args: DeployedModel) -> Application:
    """Build the application of one model, that `build`'s routers find by its name.

    Raises:
        CannotServe: as `build`.
    """
    try:
        refuse_unservable(args)
    except CannotServe:
        if args.section == TARGET:  # no service waits for a draft
            end_waiting_run()
        raise
    config = with_shared_vocabulary(resolved(args))
    section = config.section
    return _bind_model(section, config.models_here[section], config.link, config.model_name)


def _bind_model(section: str, model: ModelConfig, link: LinkConfig, model_name: str) -> Application:
    kind: EngineKind = "target" if section == TARGET else "draft"
    return bind_engine(deployment_of(section), kind, model, link, model_name)


def bind_engine(
    name: str, kind: EngineKind, model: ModelConfig, link: LinkConfig, model_name: str = _MODEL_NAME
) -> Application:
    """Bind a Draft or Target deployment; a bundle per rank, the coordinator shares the first."""
    placement = engine_placement(name, model)
    engine: Any = serve.deployment(
        name=name,
        max_ongoing_requests=model.max_num_seqs,
        ray_actor_options={"num_cpus": COORDINATOR_CPUS},
        placement_group_bundles=[dict(bundle) for bundle in placement.bundles],
        placement_group_strategy=placement.strategy,
        **_supervision(model.stall_timeout_s),
        **spare_options(model.spare),
    )(EngineReplica)
    return engine.bind(kind, model, link, model_name)


def bind_constraint(
    service: GrammarServiceConfig, link: LinkConfig, model_path: str, model_name: str = _MODEL_NAME
) -> Application:
    """Bind the Constraint deployment for the vocabulary of the checkpoint at `model_path`."""
    return serve.deployment(
        name="Constraint",
        max_ongoing_requests=service.max_sessions,
        ray_actor_options={"num_cpus": COORDINATOR_CPUS},
        **_supervision(service.stall_timeout_s),
        **spare_options(service.spare),
    )(ConstraintReplica).bind(service, link, model_path, model_name)


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
        "request_router_config": _chosen_by(_LEASE_ROUTER),
    }


def _chosen_by(request_router: str) -> RequestRouterConfig:
    """Return what makes Serve choose replicas by the class at a path."""
    return RequestRouterConfig.model_validate({"request_router_class": request_router})
