"""Tokens per second over HTTP: `serve run` of the demo's config with a pair, asked as clients ask.

The service is private and ends with the block (`loadtest.service.served`). Prompts are sent as
token ids and streamed back, so that every way answers exactly what the engines were asked.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx

from loadtest.bench.loop import Ask, LoopRun, Prompts, Span, rate_at_full_places
from loadtest.client.answers import Answer
from loadtest.client.http import READ_TIMEOUT_S, complete
from loadtest.report.machine import ROOT
from loadtest.service.served import POD_ENVIRONMENT, Config, section, served

_CONFIG = ROOT / "configs" / "demo.yaml"
_HEADS_CONFIG = ROOT / "configs" / "heads.yaml"
_LOOKUP_CONFIG = ROOT / "configs" / "smollm2.yaml"
_SPARE_SEQS = 4  # for /health, and for sessions that are being closed


class HttpBench:
    """Streams completions of a running service. Made by `http_served` and `lookup_served`."""

    def __init__(self, client: httpx.Client, model: str) -> None:
        self._client = client
        self._model = model

    def tokens_per_s(self, prompts: Prompts, k: int | None, num_tokens: int) -> float:
        """Complete all prompts greedily, one after another, `num_tokens` each; k None is adaptive.

        Raises:
            RuntimeError: an answer is an error or has another number of tokens.
        """
        asks = [Ask(prompt=prompt, num_tokens=num_tokens) for prompt in prompts]
        return self.serve(asks, batch=1, k=k).tokens_per_s

    def serve(self, asks: Sequence[Ask], *, batch: int, k: int | None) -> LoopRun:
        """Serve all asks, by `batch` clients at a time; k None is adaptive.

        Times and rounds by their k are not known here.

        Raises:
            RuntimeError: an answer is an error or has another number of tokens.
        """
        with ThreadPoolExecutor(batch) as clients:
            answers = list(clients.map(lambda ask: self._complete(ask, k), asks))
        spans = [Span(a.began_s, a.ended_s, a.num_completion_tokens) for a in answers]
        num_tokens = sum(ask.num_tokens for ask in asks)
        num_steps, num_drafted, num_accepted = (
            sum(int(answer.speculation.get(name, 0)) for answer in answers)
            for name in ("num_spec_steps", "num_draft_tokens", "num_accepted_draft_tokens")
        )
        return LoopRun(
            tokens_per_s=rate_at_full_places(spans, batch),
            tokens_per_round=1.0 + num_accepted / max(num_steps, 1),
            acceptance=num_accepted / max(num_drafted, 1),
            mean_k=num_drafted / max(num_steps, 1),
            drafted_share=num_steps / max(num_tokens - num_accepted, 1),
        )

    def _complete(self, ask: Ask, k: int | None) -> Answer:
        if ask.pause_s > 0.0:
            time.sleep(ask.pause_s)
        body: dict[str, Any] = {
            "model": self._model,
            "prompt": list(ask.prompt),
            "max_tokens": ask.num_tokens,
            "temperature": ask.temperature,
            "seed": ask.seed,
            "ignore_eos": True,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        if k is not None:
            body["speculation"] = {"k": k}
        answer = complete(self._client, "/v1/completions", body)
        if answer.num_completion_tokens != ask.num_tokens:
            raise RuntimeError(
                f"{ask.num_tokens} tokens were asked for, got {answer.num_completion_tokens}"
            )
        return answer


@contextmanager
def http_served(pair: Path, *, dtype: str, threads: tuple[int, int]) -> Iterator[HttpBench]:
    """Serve a pair, target and draft with `threads` each, until the block ends."""
    parts = dict(zip(("target", "draft"), threads, strict=True))
    changes = {part: _engine(pair / part, dtype, count) for part, count in parts.items()}
    speculation = {"prompt_lookup_max": 0, "suffix_decoding_max_tree_depth": 0}
    with _served(_CONFIG, changes, speculation) as bench:
        yield bench


@contextmanager
def lookup_served(
    target: Path, *, dtype: str, threads: int, max_num_seqs: int
) -> Iterator[HttpBench]:
    """Serve a target that prompt lookup drafts for, with so many places, until the block ends."""
    changes = {"target": _engine(target, dtype, threads), "router": {"max_sessions": max_num_seqs}}
    changes["target"] |= {"max_num_seqs": max_num_seqs + _SPARE_SEQS, "heads": None}
    with _served(_LOOKUP_CONFIG, changes, {}) as bench:
        yield bench


@contextmanager
def heads_served(folder: str) -> Iterator[HttpBench]:
    """Serve the demo's target with such heads, and nobody else who drafts, until the block ends."""
    speculation = {"prompt_lookup_max": 0, "suffix_decoding_max_tree_depth": 0, "method": None}
    changes = {"target": {"enable_prefix_caching": False, "heads": folder}}
    with _served(_HEADS_CONFIG, changes, speculation) as bench:
        yield bench


def _engine(path: Path, dtype: str, num_threads: int) -> Config:
    return {
        "model_path": str(path.resolve()),
        "dtype": dtype,
        "num_threads": num_threads,
        "enable_prefix_caching": False,  # as in the engine part
    }


@contextmanager
def _served(
    config: Path, changes: Mapping[str, Config], speculation: Config
) -> Iterator[HttpBench]:
    """Serve a config with changes to its parts, and to the router's way to draft."""
    names: list[str] = []

    def change(tree: Config) -> None:
        arguments = tree["applications"][0]["args"]
        for part, values in changes.items():
            arguments[part] |= values
        section(tree, "router.speculation").update(speculation)
        # On a slow machine a draft is waited for.
        section(tree, "router.timeouts")["draft_ms"] = 10_000
        names.append(arguments["router"]["model_name"])

    with (
        served(config, change=change, environment=POD_ENVIRONMENT) as service,
        httpx.Client(base_url=service.base_url, timeout=READ_TIMEOUT_S) as client,
    ):
        yield HttpBench(client, names[0])
