"""The stage `http`: a whole service, asked as clients ask; or one that somebody else runs.

A service of ours is private and ends with its stage (`service.served`). Prompts are sent as token
ids and streamed back, so every way answers exactly what engines were asked. A way with fields of
the config has a service of its own.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import replace
from itertools import count
from typing import Any

import httpx

from deployments.config.placement import default_placements
from deployments.config.schema import AppConfig
from loadtest.client import answers as client_answers
from loadtest.client.http import COMPLETIONS, READ_TIMEOUT_S, complete, key_headers
from loadtest.frame.runs import Answer, Ask, Run
from loadtest.frame.stages import Closing, Models
from loadtest.frame.ways import Way
from loadtest.report.machine import ROOT
from loadtest.service.served import POD_ENVIRONMENT, Config, measured, section, set_spares
from router.stats import SpeculationStats

CONFIG = ROOT / "configs" / "demo.yaml"


class ServiceStage(Closing):
    """Implements `Stage` over HTTP. A service keeps what its planner has learnt."""

    def __init__(self, models: Models) -> None:
        self._models = models
        self._url = models.url.rstrip("/")
        self._stack = ExitStack()
        self._clients: dict[str, tuple[httpx.Client, str]] = {}
        self._numbers = count(time.time_ns())  # no service may have seen a salt before

    def close(self) -> None:
        """End the services."""
        self._stack.close()

    def run(self, asks: Sequence[Ask], way: Way, batch: int) -> Run:
        """See `Stage.run`."""
        if way.is_pinned:
            raise ValueError("is_pinned: a service makes its planner itself")
        client, model = self._client(way)
        salt = f"{next(self._numbers)}-"

        def one(ask: Ask) -> Answer:
            time.sleep(ask.pause_s)
            body = {"model": model, **_body(ask, way), "cache_salt": salt + ask.group}
            return _answer(complete(client, COMPLETIONS, body), ask)

        with ThreadPoolExecutor(batch) as clients:
            return Run(answers=list(clients.map(one, asks)), batch=batch)

    def _client(self, way: Way) -> tuple[httpx.Client, str]:
        config = replace(
            way,
            k=None,
            drafter=None,
            is_constrained=True,
            stages=(),
            texts="",
            at="",
            like="",
        )
        key = repr(config)
        if key not in self._clients:
            url = self._url
            if url and config != Way(texts=""):
                raise ValueError("speculation, target, drafts: somebody else's service has its own")
            if not url:
                service = measured(
                    CONFIG, change=change_config(self._models, way), environment=POD_ENVIRONMENT
                )
                url = self._stack.enter_context(service).base_url
            client = httpx.Client(base_url=url, timeout=READ_TIMEOUT_S, headers=key_headers())
            self._stack.enter_context(client)
            found = client.get("/v1/models")
            if found.status_code != httpx.codes.OK:
                raise RuntimeError(f"{url}/v1/models: HTTP {found.status_code}: {found.text[:200]}")
            self._clients[key] = client, found.json()["data"][0]["id"]
        return self._clients[key]


def change_config(models: Models, way: Way) -> Callable[[Config], None]:
    """Return what makes a config of these models, for this way."""

    def change(config: Config) -> None:
        tree = models.side_by_side(way).tree(way)
        arguments = config["applications"][0]["args"]
        for part in ("draft", "drafts"):
            arguments.pop(part, None)
        arguments["target"] = tree["target"]
        set_spares(config, False)  # they would load beside the first round
        for part in ("draft", "drafts"):
            if part in tree and way.sees(part):
                arguments[part] = tree[part]
        if "draft" not in arguments:  # whose draft model the shipped config names
            section(config, "router").get("speculation", {}).pop("method", None)
        for name, values in tree["router"].items():
            inner = section(config, "router")
            inner[name] = {**inner.get(name, {}), **values} if isinstance(values, dict) else values
        there = {one.name for one in default_placements(AppConfig.model_validate(arguments))}
        options = config["applications"][0]["deployments"]
        options[:] = [one for one in options if one["name"] in there]

    return change


def _body(ask: Ask, way: Way) -> dict[str, Any]:
    speculation: dict[str, Any] = {"enabled": way.k != 0}
    if way.k:
        speculation["k"] = way.k
    if way.drafter is not None:
        speculation["drafter"] = way.drafter
    body: dict[str, Any] = {
        "prompt": list(ask.prompt_ids),
        "max_tokens": ask.max_tokens,
        "temperature": ask.temperature,
        "repetition_penalty": 1.0,  # no stage reads generation_config.json
        "seed": ask.seed,
        "ignore_eos": ask.ignores_eos(is_constrained=way.is_constrained),
        "stream": True,
        "stream_options": {"include_usage": True},
        "speculation": speculation,
    }
    if ask.schema is not None and way.is_constrained:
        body["structured_outputs"] = {"json": ask.schema}
    return body


def _answer(found: client_answers.Answer, ask: Ask) -> Answer:
    """Return an answer as every stage has it.

    Raises:
        RuntimeError: it should have another number of tokens.
    """
    if not ask.eos_ids and ask.schema is None and found.num_completion_tokens != ask.max_tokens:
        raise RuntimeError(
            f"{ask.max_tokens} tokens were asked for, got {found.num_completion_tokens}"
        )
    return Answer(
        content=found.text,
        num_tokens=found.num_completion_tokens,
        num_first=1,
        began_s=found.began_s,
        first_s=found.first_text_s or found.ended_s,
        ended_s=found.ended_s,
        stats=_stats(found.speculation, found.num_completion_tokens),
    )


def _stats(told: dict[str, Any], num_tokens: int) -> SpeculationStats:
    """Return statistics of what a service tells: sums of all rounds, kept as one round's."""
    num_steps = int(told.get("num_spec_steps", 0))
    num_drafted = int(told.get("num_draft_tokens", 0))
    num_accepted = int(told.get("num_accepted_draft_tokens", 0))
    later = max(0, num_steps - 1)
    return SpeculationStats(
        num_rounds=num_tokens - num_accepted,
        per_step_drafted=(num_drafted, *[0] * later) if num_steps else (),
        per_step_accepted=(num_accepted, *[0] * later) if num_steps else (),
        num_drafted_by=told.get("num_draft_tokens_by", {}),
        num_accepted_by=told.get("num_accepted_draft_tokens_by", {}),
    )
