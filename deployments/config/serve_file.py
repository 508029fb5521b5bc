"""Reads a Serve config file of ours, makes the command line's changes, and checks its shape.

A fault is one message that names the key and the value. Serve's own schema would leave out unknown
keys silently. It ends with a traceback if a section has another type.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from deployments.config.applications import Tree, applications_of
from deployments.config.keys import put
from deployments.config.live_draft import draft_user_config
from deployments.config.live_limits import NO_USER_CONFIG, with_user_config
from deployments.config.placement import Placement, deployment_of, engine_placement
from deployments.config.schema import AppConfig, RouterConfig
from deployments.config.sections.models import section_of_draft
from deployments.config.strict_yaml import read_yaml

_MAX_PORT = 65_535


@dataclass(frozen=True, kw_only=True)
class ServeFile:
    """A Serve config file of ours, validated.

    Attributes:
        tree: all of it, changes included.
        config: the `args` of its applications, as one tree.
        placements: of its deployments.
        router: `config.router` with its `user_config` in force.
    """

    tree: Tree
    config: AppConfig
    placements: list[Placement]
    router: RouterConfig

    @property
    def http(self) -> tuple[str, int]:
        """Address and port it would listen at."""
        return _http(self.tree)


def read_serve_file(path: Path, changes: dict[str, Any] | None = None) -> ServeFile:
    """Parse, change and validate a file.

    Raises:
        ValueError: one message: it is no Serve config, not ours, or a key is wrong.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise ValueError(f"cannot be read: {one_line(error)}") from None
    return read_serve_text(text, changes)


def read_serve_text(text: str, changes: dict[str, Any] | None = None) -> ServeFile:
    """Parse, change and validate the text of a file.

    Raises:
        ValueError: as `read_serve_file`.
    """
    try:
        tree = read_yaml(text)
    except ValueError as error:
        raise ValueError(f"cannot be read: {one_line(error)}") from None
    ours = applications_of(tree)
    for key, value in (changes or {}).items():
        if not ours.change(key, value):
            put(tree, key.split("."), value)
    ours = applications_of(tree)
    if unknown := unknown_keys(tree):
        raise ValueError("; ".join(f"unknown key {key!r}" for key in unknown))
    _check_imports(ours.overrides)
    _check_schema(tree)
    _check_port(tree)
    config = ours.config
    router = config.router
    drafts = [deployment_of(section_of_draft(pool)) for pool in config.draft_pools]
    engines = {
        deployment_of(section): engine_placement(deployment_of(section), model)
        for section, model in config.models.items()
    }
    for options in ours.overrides:
        name, user_config = options["name"], options.get("user_config")
        _check_options(options, engines.get(name))
        try:
            if name in drafts:
                draft_user_config(user_config)
            elif name == "Router":
                router = with_user_config(router, user_config, config.draft_pools)
            elif user_config is not None:
                raise ValueError(NO_USER_CONFIG)
        except ValueError as error:
            raise ValueError(f"deployments.{name}.{error}") from None
    placements = ours.placements
    return ServeFile(tree=tree, config=config, placements=placements, router=router)


def _check_schema(tree: Tree) -> None:
    """Have Serve read the tree.

    Raises:
        ValueError: it refuses it; with each fault's path.
    """
    from ray.serve.schema import ServeDeploySchema

    try:
        ServeDeploySchema.model_validate(tree)
    except ValidationError as error:
        faults = "; ".join(
            f"{'.'.join(map(str, fault['loc']))}: {fault['msg']}" for fault in error.errors()
        )
        raise ValueError(faults) from None


def unknown_keys(tree: Tree) -> list[str]:
    """Keys outside `args` that Serve would leave out without a word, by their path."""
    from ray.serve import schema
    from ray.serve.config import AutoscalingConfig, RequestRouterConfig

    sections: list[tuple[str, Any, Any]] = [
        ("", tree, schema.ServeDeploySchema),
        ("http_options.", tree.get("http_options"), schema.HTTPOptionsSchema),
        ("logging_config.", tree.get("logging_config"), schema.LoggingConfig),
    ]
    for application in tree["applications"]:
        sections.append(("applications.", application, schema.ServeApplicationSchema))
        for options in application.get("deployments") or []:
            name = f"deployments.{options.get('name')}."
            actor, scaling = options.get("ray_actor_options"), options.get("autoscaling_config")
            sections.append((name, options, schema.DeploymentSchema))
            sections.append((f"{name}ray_actor_options.", actor, schema.RayActorOptionsSchema))
            sections.append((f"{name}autoscaling_config.", scaling, AutoscalingConfig))
            chosen = options.get("request_router_config")
            sections.append((f"{name}request_router_config.", chosen, RequestRouterConfig))
    return [
        f"{path}{key}"
        for path, values, model in sections
        if isinstance(values, dict)
        for key in values
        if key not in model.model_fields
    ]


def _check_imports(overrides: Sequence[Tree]) -> None:
    """Have Serve import what deployments name; its schema of the file does not say by which key.

    Raises:
        ValueError: it cannot be imported, or a policy of ours does not take its limits.
    """
    from ray.serve.config import AutoscalingConfig, RequestRouterConfig

    models: dict[str, Any] = {
        "autoscaling_config": AutoscalingConfig,
        "request_router_config": RequestRouterConfig,
    }
    for options, (key, model) in itertools.product(overrides, models.items()):
        where = f"deployments.{options.get('name')}.{key}"
        try:
            found = model.model_validate(options.get(key) or {})
        except ValidationError:
            continue  # Serve's schema and `_check_options` name these
        except (ImportError, AttributeError) as error:
            raise ValueError(f"{where}: {one_line(error)}") from None
        if isinstance(found, AutoscalingConfig):
            complaint_of = getattr(found.policy.get_policy(), "complaint_of", lambda _: "")
            if complaint := complaint_of(found.policy.policy_kwargs):
                raise ValueError(f"{where}.policy.{complaint}")


def _check_options(options: Tree, engine: Placement | None) -> None:
    """Have Serve check what the schema of its file takes as it is: scaling, placement, places.

    Args:
        options: of one deployment.
        engine: the placement that `build` gives it if it is an engine.

    Raises:
        ValueError: it would refuse them when it deploys.
    """
    from ray import serve

    given: Tree = {key: value for key, value in options.items() if value is not None}
    if engine is not None:
        usual: Tree = {
            "placement_group_bundles": [dict(bundle) for bundle in engine.bundles],
            "placement_group_strategy": engine.strategy,
            "ray_actor_options": {"num_cpus": engine.own["CPU"]},
        }
        given = usual | given
    try:
        serve.deployment(**given)(_Nothing)
    except (ImportError, AttributeError, TypeError, ValueError) as error:
        raise ValueError(f"deployments.{options['name']}: {one_line(error)}") from None


class _Nothing:
    """A deployment that is never deployed."""


def one_line(error: BaseException) -> str:
    """Return an error's text without its line breaks."""
    return " ".join(str(error).split())


def _http(tree: Tree) -> tuple[str, int]:
    options = tree.get("http_options") or {}
    return str(options.get("host", "0.0.0.0")), int(options.get("port", 8000))


def _check_port(tree: Tree) -> None:
    """Serve's own schema takes any number."""
    _, port = _http(tree)
    if not 0 <= port <= _MAX_PORT:
        raise ValueError(f"http_options.port: must be from 0 to {_MAX_PORT}, got {port}")
