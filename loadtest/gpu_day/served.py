"""Draft and target in processes of their own, on one card and on two, and ranks that share one."""

from __future__ import annotations

import random
import statistics
from typing import Any

import httpx

from loadtest.bench.link import linked_models
from loadtest.bench.loop import LoopRun, loop_lines
from loadtest.client.http import CHAT, READ_TIMEOUT_S, complete
from loadtest.gpu_day.terms import MAX_MODEL_LEN, Terms, engine_config
from loadtest.report.interleaved import interleave
from loadtest.report.machine import ROOT
from loadtest.service.served import Config, served

_KS: tuple[int | None, ...] = (0, 3, 5, None)
_BATCHES = (1, 8)
_PROMPT_TOKENS, _NUM_TOKENS = 32, 48
_LOWEST_VOCAB = 256  # below any pair's: prompts are ids below it
_RANKS = 2
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
    models = {
        "target": engine_config(terms, "target", graphs=terms.graph_modes[0]),
        "draft": engine_config(terms, "draft", graphs=terms.graph_modes[0], card=draft_card),
    }
    rng = random.Random(7)
    prompts = [
        [rng.randrange(1, _LOWEST_VOCAB) for _ in range(_PROMPT_TOKENS)]
        for _ in range(2 * max(_BATCHES))
    ]
    lines = []
    with linked_models(models["target"], models["draft"], MAX_MODEL_LEN) as bench:
        for batch in _BATCHES:
            asked = prompts[: 2 * batch]

            def run(k: int | None, batch: int = batch, asked: Any = asked) -> LoopRun:
                return bench.run(asked, batch=batch, k=k, num_tokens=_NUM_TOKENS)

            by_k = loop_lines(_KS, run)
            interleave(by_k, 1)
            runs = interleave(by_k, terms.repeats)
            lines += [_line(batch, name, runs[name]) for name in by_k]
    return {"lines": lines}


def _line(batch: int, name: str, runs: list[LoopRun]) -> dict[str, Any]:
    return {
        "batch": batch,
        "way": name,
        "tokens_per_s": round(statistics.median(run.tokens_per_s for run in runs), 1),
        "acceptance": round(statistics.median(run.acceptance for run in runs), 3),
        "split_ms": {
            part: round(statistics.median(run.round_ms[part] for run in runs), 3)
            for part in runs[0].round_ms
        },
    }


def ranks(terms: Terms) -> dict[str, Any]:
    """Measure the demo pair over HTTP with a target that two ranks share.

    Raises:
        RuntimeError: a text is another with drafts than without.
    """

    def change(tree: Config) -> None:
        arguments = tree["applications"][0]["args"]
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
