"""Draft and target in processes of their own, on one card and on two, and ranks that share one."""

from __future__ import annotations

import random
import statistics
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from functools import partial
from typing import Any

import httpx

from deployments.config.schema import RouterConfig
from deployments.config.sections.models import ModelConfig
from loadtest.client.http import CHAT, READ_TIMEOUT_S, complete
from loadtest.frame.links import LinkedStage
from loadtest.frame.references import VllmStage
from loadtest.frame.runs import MEASURES, Ask, Run
from loadtest.frame.stages import ROUTER, Models, Stage
from loadtest.frame.ways import Way, by_k
from loadtest.gpu_day.terms import MAX_MODEL_LEN, Terms, engine_config
from loadtest.report.interleaved import interleave
from loadtest.report.machine import ROOT
from loadtest.service.served import Config, served, set_spares
from router.drafters.draft_model import POOL

_KS = (3, 5)
_SPLIT = ("draft", "verify", "queue", "link", "loop")
ROUTER_SECTION = RouterConfig.model_validate({"max_model_len": MAX_MODEL_LEN, **ROUTER})
_BATCHES = (1, 8)
_PROMPT_TOKENS, _NUM_TOKENS = 32, 48
_LOWEST_VOCAB = 256  # below any pair's: prompts are ids below it
_RANKS = 2
_VLLM_BLOCK = 64  # tokens; its kernels for CPUs want 32 of them or more
_ASKED = (
    "Write a story about a cat that finds a key.",
    "Turn this order into JSON.\nImogen from Delhi wants 6 blue lamps at $62.29 each.",
)


def one_card(terms: Terms) -> dict[str, Any]:
    """Tokens/s with the draft on the target's card."""
    return _speed(terms, draft_card=0)


def two_cards(terms: Terms) -> dict[str, Any]:
    """Tokens/s with the draft on a card of its own."""
    return _speed(terms, draft_card=1)


def _speed(terms: Terms, draft_card: int) -> dict[str, Any]:
    """Measure the speed by batch and k."""
    graphs = terms.graph_modes[0]
    target = engine_config(terms, "target", graphs=graphs)
    draft = engine_config(terms, "draft", graphs=graphs, card=draft_card)
    with LinkedStage(target, {POOL: draft}, lambda way: ROUTER_SECTION) as stage:
        return {"lines": _lines(terms, stage, by_k(_KS))}


def vllm(terms: Terms) -> dict[str, Any]:
    """Measure plain decoding by vLLM alone, by our loop around its layers, and by our engine.

    One after the other: each takes a card to itself.
    """
    own = engine_config(terms, "target", graphs=terms.graph_modes[0])
    by_name = {"engine": "vllm", "attention": "auto", "graphs": "auto", "block_size": _VLLM_BLOCK}
    words = {"dtype": own.dtype, "max_model_len": own.max_model_len}
    stages: dict[str, Callable[[], AbstractContextManager[Stage]]] = {
        "vllm": lambda: VllmStage(
            Models(label="pair", target=terms.pair / "target", drafts={}, engine=words)
        ),
        "our loop": lambda: _linked(ModelConfig(**(own.model_dump() | by_name))),
        "our engine": lambda: _linked(own),
    }
    lines = []
    for name, opened in stages.items():
        with opened() as stage:
            lines += _lines(terms, stage, {name: Way(k=0)})
    return {"lines": lines}


def _linked(target: ModelConfig) -> LinkedStage:
    return LinkedStage(target, {}, lambda way: ROUTER_SECTION)


def _lines(terms: Terms, stage: Stage, ways: Mapping[str, Way]) -> list[dict[str, Any]]:
    rng = random.Random(7)
    asks = [
        Ask(
            prompt_ids=tuple(rng.randrange(1, _LOWEST_VOCAB) for _ in range(_PROMPT_TOKENS)),
            max_tokens=_NUM_TOKENS,
        )
        for _ in range(2 * max(_BATCHES))
    ]
    lines = []
    for batch in _BATCHES:
        by_way = {
            name: partial(stage.run, asks[: 2 * batch], way, batch) for name, way in ways.items()
        }
        interleave(by_way, 1)
        runs = interleave(by_way, terms.repeats)
        lines += [_line(batch, name, runs[name]) for name in by_way]
    return lines


def _line(batch: int, name: str, runs: list[Run]) -> dict[str, Any]:
    def median(measure: str, digits: int) -> float:
        return round(statistics.median(MEASURES[measure](run) for run in runs), digits)

    return {
        "batch": batch,
        "way": name,
        "tokens_per_s": median("tokens_per_s", 1),
        "acceptance": median("acceptance", 3),
        "split_ms": {part: median(f"{part}_ms", 3) for part in _SPLIT},
    }


def ranks(terms: Terms) -> dict[str, Any]:
    """Measure the demo pair over HTTP with a target that two ranks share.

    Raises:
        RuntimeError: a text is another with drafts than without.
    """

    def change(tree: Config) -> None:
        arguments = tree["applications"][0]["args"]
        set_spares(tree, False)
        arguments["target"]["tensor_parallel_size"] = _RANKS
        for part in ("target", "draft"):
            arguments[part]["device"] = terms.device
        for deployment in tree["applications"][0]["deployments"]:
            if bundles := deployment.get("placement_group_bundles"):
                count = _RANKS if deployment["name"] == "Target" else 1
                deployment["placement_group_bundles"] = _bundles(terms, bundles[0], count)

    texts: dict[str, list[str]] = {}
    with (
        served(ROOT / "configs" / "demo.yaml", change=change) as service,
        httpx.Client(base_url=service.base_url, timeout=READ_TIMEOUT_S) as client,
    ):
        for name, speculation in (("drafts", {}), ("none", {"enabled": False})):
            texts[name] = [_answer(client, content, speculation) for content in _ASKED]
        ready = [line for line in service.log().splitlines() if "ready" in line]
    if texts["drafts"] != texts["none"]:
        raise RuntimeError(f"drafts moved a text: {texts}")
    return {"num_ranks": _RANKS, "num_texts": len(_ASKED), "ready": ready[-4:]}


def _bundles(terms: Terms, bundle: dict[str, float], count: int) -> list[dict[str, float]]:
    """Return one bundle for each rank, which has a GPU almost to itself.

    The draft gets the rest of one.
    """
    if not terms.is_gpu:
        return [bundle] * count
    return [{"CPU": 0.5, "GPU": 0.9 if count > 1 else 0.1}] * count


def _answer(client: httpx.Client, content: str, speculation: dict[str, Any]) -> str:
    body = {
        "model": "outrider-demo",
        "messages": [{"role": "user", "content": content}],
        "max_tokens": _NUM_TOKENS,
        "temperature": 0.8,
        "seed": 11,
        "stream": True,
        "stream_options": {"include_usage": True},
        "speculation": speculation,
    }
    return complete(client, CHAT, body).text
