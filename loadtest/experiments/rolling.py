"""A running service is changed by `serve deploy`, under streams that must not notice.

It runs on a private cluster of nodes in name only (`loadtest.service.cluster`). That has a draft
node and a target node more than configs/prod.yaml asks for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import httpx

from deployments.config.applications import applications_of
from loadtest.experiments.trials import CALM, streams
from loadtest.service.cluster import DRAFT, ROUTER, TARGET, fit_one_machine
from loadtest.service.served import Config, options, section
from loadtest.trial.checks import nothing_held
from loadtest.trial.events import Deploy
from loadtest.trial.scene import Event, Scene, Terms
from loadtest.trial.trial import Place, Trial

_ASKED = 8  # times, so that more than one router is asked


def k_limit_is(base_url: str, limit: int, api_key: str = "") -> str:
    """Return a complaint if a router does not allow exactly k = `limit` at most; "" if all do."""
    for _ in range(_ASKED):
        if (status := _ask(base_url, limit, api_key).status_code) != httpx.codes.OK:
            return f"k = {limit} should be allowed, got HTTP {status}"
        refused = _ask(base_url, limit + 1, api_key)
        if f"at most {limit} " not in refused.text:
            return f"k = {limit + 1} should be refused: {refused.text[:200]}"
    return ""


def refusal_is_reported(base_url: str) -> str:
    """Return a complaint if no router's metrics report the refused user_config; "" if one does."""
    for _ in range(_ASKED):
        text = httpx.get(f"{base_url}/metrics", timeout=10).text
        refused = [
            line for line in text.splitlines() if line.startswith("outrider:user_config_ref")
        ]
        if refused and refused[0].endswith(" 1.0"):
            return ""
    return "no router's metrics report the refused user_config"


def _ask(base_url: str, k: int, api_key: str) -> httpx.Response:
    body = {
        "model": "outrider-demo",
        "messages": [{"role": "user", "content": "Hello"}],
        "max_tokens": 1,
        "speculation": {"k": k},
    }
    headers = {"authorization": f"Bearer {api_key}"} if api_key else {}
    url = f"{base_url}/v1/chat/completions"
    return httpx.post(url, json=body, headers=headers, timeout=60)


def first_config(config: Config, terms: Terms) -> None:
    """Make the first config; its target's replacement starts before the old one ends."""
    fit_one_machine(config)
    set_ranks(config, terms.tensor_parallel_size)
    options(config, "Target")["max_surge_percent"] = 100


def set_ranks(config: Config, number: int) -> None:
    """So many ranks for the target, and as many of its bundles."""
    section(config, "target")["tensor_parallel_size"] = number
    target = options(config, "Target")
    target["placement_group_bundles"] = target["placement_group_bundles"][:number]


def _limits(value: Any) -> Callable[[Config], None]:
    return lambda config: options(config, "Router").update(user_config=value)


def changes(config: Config) -> list[Deploy]:
    """Return the successive deployments; a key of args replaces all of its own application."""
    speculation = applications_of(config).config.router.speculation
    k_limit = speculation.max_num_speculative_tokens
    lower, higher = (
        {"speculation": {"max_num_speculative_tokens": limit}, name: 80}
        for limit, name in ((4, "max_sessions"), (5, "max_sesions"))
    )
    return [
        Deploy(
            way="other limits",
            edit=_limits(lower),
            check=lambda scene: k_limit_is(scene.base_url, 4),
        ),
        Deploy(
            way="wrong limits",
            edit=_limits(higher),
            check=lambda scene: (
                k_limit_is(scene.base_url, 4) or refusal_is_reported(scene.base_url)
            ),
        ),
        Deploy(
            way="the first limits",
            edit=_limits({}),
            check=lambda scene: k_limit_is(scene.base_url, k_limit),
        ),
        Deploy(
            way="a second draft",
            edit=lambda changed: options(changed, "Draft").update(num_replicas=2),
        ),
        Deploy(
            way="a key of the router",
            edit=lambda changed: section(changed, "router").update(default_max_tokens=77),
        ),
        Deploy(
            way="a key of the target",
            edit=lambda changed: section(changed, "target").update(max_num_batched_tokens=1024),
        ),
    ]


def _calm_and_changes(scene: Scene) -> Iterator[Event]:
    yield CALM
    yield from changes(scene.config)[: scene.terms.changes]


ROLLING = Trial(
    question="does any stream change or end when a running service is changed",
    terms={
        "streams": 8,  # free ones, and as many constrained
        "tensor_parallel_size": 1,  # in place of the config's: here all ranks share the cores
        "changes": 6,  # the first so many
    },
    quick={"streams": 2, "changes": 1},
    config="prod.yaml",
    place=Place(change=first_config, roles=(ROUTER, DRAFT, DRAFT, TARGET, TARGET)),
    loads=streams,
    events=_calm_and_changes,
    after=(nothing_held(60.0),),
    steady_s=120.0,
)
