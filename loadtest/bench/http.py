"""Tokens per second over HTTP: `serve run` of the demo's config with a pair, asked as clients ask.

The service is private and ends with the block (`loadtest.service.served`). Prompts are sent as
token ids and streamed back, so that every way answers exactly what the engines were asked.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx

from loadtest.bench.loop import Prompts
from loadtest.client.http import READ_TIMEOUT_S, complete
from loadtest.report.machine import ROOT
from loadtest.service.served import POD_ENVIRONMENT, Config, served

_CONFIG = ROOT / "configs" / "demo.yaml"


class HttpBench:
    """Streams completions of a running service, one after another. Made by `http_served`."""

    def __init__(self, client: httpx.Client, model: str) -> None:
        self._client = client
        self._model = model

    def tokens_per_s(self, prompts: Prompts, k: int | None, num_tokens: int) -> float:
        """All prompts greedily, `num_tokens` each; k None is adaptive.

        Raises:
            RuntimeError: an answer is an error or has another number of tokens.
        """
        started_at = time.perf_counter()
        for prompt in prompts:
            num_received = self._complete(list(prompt), k, num_tokens)
            if num_received != num_tokens:
                raise RuntimeError(f"{num_tokens} tokens were asked for, got {num_received}")
        return len(prompts) * num_tokens / (time.perf_counter() - started_at)

    def _complete(self, prompt: list[int], k: int | None, num_tokens: int) -> int:
        body: dict[str, Any] = {
            "model": self._model,
            "prompt": prompt,
            "max_tokens": num_tokens,
            "temperature": 0.0,
            "ignore_eos": True,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        if k is not None:
            body["speculation"] = {"k": k}
        return complete(self._client, "/v1/completions", body).num_completion_tokens


@contextmanager
def http_served(pair: Path, *, dtype: str, threads: tuple[int, int]) -> Iterator[HttpBench]:
    """Serve a pair, target and draft with `threads` each, until the block ends."""
    names: list[str] = []

    def change(config: Config) -> None:
        arguments = config["applications"][0]["args"]
        for part, num_threads in zip(("target", "draft"), threads, strict=True):
            arguments[part] |= {
                "model_path": str((pair / part).resolve()),
                "dtype": dtype,
                "num_threads": num_threads,
                "enable_prefix_caching": False,  # as in the engine part
            }
        only_the_draft_model = {"prompt_lookup_max": 0, "suffix_decoding_max_tree_depth": 0}
        arguments["router"]["speculation"] |= only_the_draft_model
        arguments["router"]["timeouts"]["draft_ms"] = 10_000  # on a slow machine it is waited for
        names.append(arguments["router"]["model_name"])

    with (
        served(_CONFIG, change=change, environment=POD_ENVIRONMENT) as service,
        httpx.Client(base_url=service.base_url, timeout=READ_TIMEOUT_S) as client,
    ):
        yield HttpBench(client, names[0])
