"""Limits of running routers: Serve's `user_config` of the deployment Router.

A changed `user_config` is applied to running replicas by one call. A change of `args` replaces
every replica of every deployment. The `user_config` is a part of the tree `args.router`, with the
keys of `LIVE_KEYS`. Keys that it leaves out are as in `args`. It is refused as a whole if it has
any fault.

A replica that raises when it is reconfigured counts as broken. Serve drains it and replaces it by
one that raises at its start, until none is left. So a replica that serves never raises: it keeps
its limits and logs why. One that starts raises only while its application is being deployed. `serve
status` then shows it as DEPLOY_FAILED, and older replicas go on. A replacement for a lost replica
starts as `args` say.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Mapping
from typing import Any, cast

from pydantic import BaseModel, ValidationError
from ray import serve
from ray.exceptions import RayError
from ray.serve.exceptions import RayServeException

from deployments.config.schema import RouterConfig
from deployments.config.sections.models import describe
from router.drafters.choice import check_draft_names
from router.limits import SessionLimits, SpeculationLimits

NO_USER_CONFIG = "user_config: only Router and Draft take one; change args instead"
logger = logging.getLogger("ray.serve")

# By section: what a router can change while it serves. The rest decides which text is served, or is
# read once at the start.
LIVE_KEYS: dict[str, frozenset[str]] = {
    "": frozenset(
        {
            "default_max_tokens",
            "max_tokens_limit",
            "max_choices",
            "max_choices_at_once",
            "max_logprob_entries",
            "body_limit_bytes",
            "max_sessions",
            "max_queued_sessions",
            "reserved_sessions",
            "speculation",
            "timeouts",
        }
    ),
    "speculation": frozenset(SpeculationLimits.model_fields) - {"method", "verification"},
    "timeouts": frozenset(SessionLimits.model_fields),
}

# Serve itself lets so many times the sessions of `args` through to a router (see `app.build`).
ADMISSION_HEADROOM = 2


def with_user_config(
    base: RouterConfig, user_config: object, draft_pools: Collection[str] = ()
) -> RouterConfig:
    """`base` with the limits of `user_config`, a tree of plain values; None: no other limits.

    Args:
        base: the limits of `args`.
        user_config: as Serve hands it over.
        draft_pools: pools of the draft models that there are.

    Raises:
        ValueError: one message that names every key at fault, with limit and value.
    """
    changes = {} if user_config is None else user_config
    refusals = list(_key_faults(changes, "", RouterConfig))
    if refusals:
        raise ValueError(f"user_config: {'; '.join(refusals)}")
    try:
        config = RouterConfig.model_validate(_merged(base.model_dump(), changes))
    except ValidationError as error:
        raise ValueError(f"user_config: {describe(error)}") from None
    try:
        check_draft_names(config.speculation, draft_pools)
    except ValueError as error:
        raise ValueError(f"user_config: {error}") from None
    _check_admission(base, config)
    return config


def changes_of(before: BaseModel, after: BaseModel, path: str = "") -> list[str]:
    """List every leaf that differs, as "key: old -> new"."""
    found = []
    for name in type(before).model_fields:
        old, new = getattr(before, name), getattr(after, name)
        if isinstance(old, BaseModel):
            found += changes_of(old, new, f"{path}{name}.")
        elif old != new:
            found.append(f"{path}{name}: {old} -> {new}")
    return found


async def take_user_config(
    take: Callable[[Any], Awaitable[None]], user_config: object, name: str, *, is_serving: bool
) -> bool:
    """Apply a replica's `user_config`; whether that was done.

    Args:
        take: applies it, or raises ValueError and changes nothing.
        user_config: as Serve hands it over; None: there is none.
        name: of the deployment.
        is_serving: whether the replica was there before this one came.

    Raises:
        ValueError: it is refused, and the application is just being deployed for the first time
            or with other `args`.
    """
    try:
        await take(user_config)
    except ValueError as error:
        if not is_serving and await _is_being_deployed():
            raise
        kept = "all stays as it was" if is_serving else "starts as args say"
        logger.error("%s: %s: %s", name, kept, error)
        return False
    return True


async def refuse_any(user_config: object) -> None:
    """Refuse any `user_config`, for deployments that take none: Target and Constraint.

    Raises:
        ValueError: there is one.
    """
    if user_config is not None:
        raise ValueError(NO_USER_CONFIG)


def _key_faults(tree: object, section: str, model: type[BaseModel]) -> list[str]:
    if not isinstance(tree, Mapping):
        where = section or "it"
        return [f"{where} must be a mapping of keys (got {tree!r})"]
    faults = []
    for key, value in tree.items():
        path = f"{section}.{key}" if section else str(key)
        if key not in model.model_fields:
            faults.append(f"unknown key {path!r}")
        elif key not in LIVE_KEYS[section]:
            faults.append(f"{path} cannot change while it serves: change args.router.{path}")
        elif key in LIVE_KEYS:
            part = cast("type[BaseModel]", model.model_fields[key].annotation)
            faults += _key_faults(value, key, part)
    return faults


def _merged(base: Mapping[str, Any], changes: Any) -> dict[str, Any]:
    parts = {
        key: _merged(base[key], value) if key in LIVE_KEYS else value
        for key, value in changes.items()
    }
    return {**base, **parts}


def _check_admission(base: RouterConfig, config: RouterConfig) -> None:
    num_admitted = config.max_sessions + config.max_queued_sessions
    limit = ADMISSION_HEADROOM * (base.max_sessions + base.max_queued_sessions)
    if num_admitted > limit:
        raise ValueError(
            f"user_config: max_sessions {config.max_sessions} and max_queued_sessions "
            f"{config.max_queued_sessions} are {num_admitted} together, at most {limit} "
            f"({ADMISSION_HEADROOM} times those of args.router) can be let in while it serves"
        )


async def _is_being_deployed() -> bool:
    """Return whether Serve is still deploying this replica's application; True if it cannot say."""
    app_name = serve.get_replica_context().app_name
    try:
        status = await asyncio.to_thread(serve.status)
    except (RayError, RayServeException):
        return True
    return app_name not in status.applications or status.applications[app_name].status in (
        "NOT_STARTED",
        "DEPLOYING",
        "DEPLOY_FAILED",
    )
