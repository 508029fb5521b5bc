"""What the HTTP tests share: a small real tokenizer and a generator that follows a script."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from deployments.api.health import HealthProbe
from deployments.api.http import HttpService
from deployments.api.requests import ServedModel
from deployments.config.schema import RouterConfig
from deployments.ingress import service
from models.text.tokenizer import Tokenizer
from router.stats import SpeculationStats, TimeSplit
from router.types import Delta, Detokenizer, Finished, FinishReason, GenerationRequest, Generator
from tests.cases.tokenizers import byte_level

TEMPLATE = (
    "{% for m in messages %}<|{{ m['role'] }}|>{{ m['content'] }}<|end|>{% endfor %}<|assistant|>"
)
CHAT: dict[str, Any] = {"model": "tiny", "messages": [{"role": "user", "content": "hi"}]}
TEXT: dict[str, Any] = {"model": "tiny", "prompt": "hi"}
BODIES = {"/v1/chat/completions": CHAT, "/v1/completions": TEXT}
BOTH = pytest.mark.parametrize("path", BODIES, ids=["chat", "text"])
SPECIALS = ["<|end|>", "<|system|>", "<|user|>", "<|assistant|>"]
STATS = SpeculationStats(
    num_rounds=5,
    per_step_drafted=(2, 2, 3, 3),
    per_step_accepted=(0, 1, 2, 3),
    per_step_ahead=(0, 2, 0, 3),
    num_drafted_by={"draft_model": 7, "ngram": 3},
    num_accepted_by={"draft_model": 5, "ngram": 1},
    num_guess_tokens=9,
    num_right_guess_tokens=4,
    time=TimeSplit(draft_ms=1.5, verify_ms=2.5),
)


@functools.cache
def tiny_tokenizer() -> Tokenizer:
    backend = byte_level(["The old bear walked home."] * 5, SPECIALS, vocab_size=300)
    return Tokenizer(backend, {"chat_template": TEMPLATE, "eos_token": "<|end|>"})


@dataclass
class ScriptedGenerator:
    """Yields `texts` as blocks, then ends; raises `error` before block `error_at`.

    `deltas` are yielded instead where there are any, `texts_of` says another text for a seed.
    With `hang_at` it waits for ever before that block. `closed` counts generations that ended,
    whichever way.
    """

    texts: Sequence[str] = ("The ", "bear", ".")
    error: Exception | None = None
    error_at: int = 0
    hang_at: int | None = None
    delay_s: float = 0.0
    finish_reason: FinishReason = "stop"
    deltas: Sequence[Delta] = ()
    replicas: Mapping[str, str] = field(default_factory=dict)
    texts_of: Mapping[int, Sequence[str]] = field(default_factory=dict)
    requests: list[GenerationRequest] = field(default_factory=list)
    started: asyncio.Event = field(default_factory=asyncio.Event)
    closed: int = 0

    async def generate(
        self, request: GenerationRequest, detokenizer: Detokenizer
    ) -> AsyncGenerator[Delta | Finished, None]:
        self.requests.append(request)
        self.started.set()
        try:
            texts = self.texts_of.get(request.sampling.seed, self.texts)
            blocks = self.deltas or [Delta(text, (index,)) for index, text in enumerate(texts)]
            for index, block in enumerate(blocks):
                if self.error is not None and self.error_at == index:
                    raise self.error
                if self.hang_at == index:
                    await asyncio.Event().wait()
                await asyncio.sleep(self.delay_s)
                yield block
            yield Finished(
                finish_reason=self.finish_reason,
                num_prompt_tokens=len(request.prompt_ids),
                num_completion_tokens=len(blocks),
                num_cached_tokens=2,
                speculation=STATS,
                replicas=self.replicas,
            )
        finally:
            self.closed += 1


def served_model(**limits: Any) -> ServedModel:
    settings = {"max_model_len": 200, "default_max_tokens": 64, "max_tokens_limit": 100} | limits
    config = RouterConfig(model_name="tiny", max_choices=8)
    model = service.served_model(config, tiny_tokenizer(), created=1_700_000_000)
    return replace(model, **settings)


def http_service(generator: Generator, **options: Any) -> HttpService:
    model = options.pop("model", None) or served_model()
    config = RouterConfig()
    limits: dict[str, Any] = {
        "body_limit_bytes": config.body_limit_bytes,
        "send_timeout_s": config.timeouts.token_gap_s,
        "metrics": lambda: b"",
    }
    return HttpService(
        model=model,
        generator=generator,
        health=HealthProbe(generator, model.tokenizer, model.name, timeout_s=2.0),
        **(limits | options),
    )
