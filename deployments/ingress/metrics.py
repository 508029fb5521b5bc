"""What a router measures of its requests, under vLLM's names where vLLM has one.

Wraps a `Generator` and is one. Names and units as in vLLM's production metrics, so that its
dashboards and tools work unchanged; what vLLM has no word for begins with `outrider:`.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from dataclasses import fields
from typing import cast

from deployments.serve.instruments import Meters
from models.protocol.errors import ServingError
from router.types import (
    Delta,
    Detokenizer,
    Finished,
    GenerationRequest,
    Generator,
    SpeculationStats,
    TimeSplit,
)

# Upper bounds, seconds and tokens. A first token may wait for a queue, later ones rarely do.
_FIRST_TOKEN_S = (
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80
)  # fmt: skip
_TOKEN_GAP_S = (
    0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.5, 1, 2.5, 5, 10
)  # fmt: skip
_REQUEST_S = (0.05, 0.1, 0.3, 0.5, 0.8, 1, 1.5, 2, 2.5, 5, 10, 15, 20, 30, 40, 60, 120, 240, 600)
_TOKENS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000, 20000, 50000, 100000)
_DRAFT_LENGTHS = (0, 1, 2, 3, 4, 5, 6, 7, 8, 12, 16, 32, 64)

CLIENT_GONE = "client_gone"  # the code of a request whose client left

_TELL_PERIOD_S = 1.0

_PARTS = tuple(field.name.removesuffix("_ms") for field in fields(TimeSplit))


class RequestMetrics:
    """The instruments of one router process.

    Args:
        meters: makes them.
        num_keys_refused: how many lines of the file of API keys are skipped now.
    """

    def __init__(self, meters: Meters, num_keys_refused: Callable[[], int] = lambda: 0) -> None:
        self._meters = meters
        self._num_keys_refused = num_keys_refused
        self._running = meters.gauge("vllm:num_requests_running", "Requests being generated")
        self._waiting = meters.gauge("vllm:num_requests_waiting", "Requests waiting for a place")
        self._refused = meters.gauge(
            "outrider:user_config_refused",
            "1: the newest user_config was refused and the limits before it are in force",
        )
        self._keys_refused = meters.gauge(
            "outrider:api_keys_refused",
            "Lines of the API key file that are skipped; 1 while it cannot be read",
        )
        self._prompt_tokens = meters.counter("vllm:prompt_tokens", "Prompt tokens taken in")
        self._tokens = meters.counter("vllm:generation_tokens", "Tokens generated")
        self._success = meters.counter(
            "vllm:request_success", "Requests that ended as they should", ["finished_reason"]
        )
        self._failure = meters.counter(
            "outrider:request_failure", "Requests that ended with an error, by its code", ["code"]
        )
        self._first_token_s = meters.histogram(
            "vllm:time_to_first_token_seconds", "From request to first token", _FIRST_TOKEN_S
        )
        self._gap_s = meters.histogram(
            "vllm:inter_token_latency_seconds",
            "Between two tokens of a stream; tokens that came together share their time",
            _TOKEN_GAP_S,
        )
        self._request_s = meters.histogram(
            "vllm:e2e_request_latency_seconds", "From request to last token", _REQUEST_S
        )
        self._prompt_lengths = meters.histogram(
            "vllm:request_prompt_tokens", "Prompt tokens of a request", _TOKENS
        )
        self._lengths = meters.histogram(
            "vllm:request_generation_tokens", "Generated tokens of a request", _TOKENS
        )
        self._drafts = meters.counter("vllm:spec_decode_num_drafts", "Rounds with a draft")
        self._drafted = meters.counter(
            "vllm:spec_decode_num_draft_tokens", "Draft tokens that were verified"
        )
        self._accepted = meters.counter(
            "vllm:spec_decode_num_accepted_tokens", "Draft tokens that stood"
        )
        self._accepted_at = meters.counter(
            "vllm:spec_decode_num_accepted_tokens_per_pos",
            "Draft tokens that stood, by their position in the draft",
            ["position"],
        )
        self._drafted_by = meters.counter(
            "outrider:draft_tokens", "Draft tokens that were verified, by who drafted", ["source"]
        )
        self._k = meters.histogram(
            "outrider:draft_length", "Tokens drafted in a round with a draft", _DRAFT_LENGTHS
        )
        self._rounds = meters.counter("outrider:rounds", "Verdicts, plain steps included")
        self._part_s = meters.counter(
            "outrider:round_seconds", "Where rounds spent their time", ["part"]
        )
        self._load = (0, 0)
        self._is_refused = False
        self.tell()

    def text(self) -> bytes:
        """All instruments in Prometheus' text format."""
        return self._meters.text()

    def set_load(self, num_running: int, num_waiting: int) -> None:
        """How many requests run and wait now."""
        self._load = (num_running, num_waiting)
        self.tell()

    def set_refused(self, is_refused: bool) -> None:
        """Whether the newest `user_config` was refused."""
        self._is_refused = is_refused
        self.tell()

    def tell(self) -> None:
        """Set all gauges to what they are."""
        num_running, num_waiting = self._load
        self._running.set(num_running)
        self._waiting.set(num_waiting)
        self._refused.set(float(self._is_refused))
        self._keys_refused.set(self._num_keys_refused())

    async def publish_forever(self, period_s: float = _TELL_PERIOD_S) -> None:
        """Tell every `period_s` seconds, so that nobody forgets what does not change. Endless."""
        while True:
            await asyncio.sleep(period_s)
            self.tell()

    def add_first_tokens(self, after_s: float) -> None:
        """The first tokens of a request came `after_s` seconds after it."""
        self._first_token_s.observe(after_s)

    def add_tokens(self, num_tokens: int, gap_s: float) -> None:
        """`num_tokens` further tokens came together, `gap_s` after those before."""
        self._gap_s.observe(gap_s / num_tokens, times=num_tokens)

    def add_finished(self, finished: Finished, after_s: float) -> None:
        """A request ended as it should."""
        self._success.add(finished_reason=finished.finish_reason)
        self._request_s.observe(after_s)
        self._prompt_tokens.add(finished.num_prompt_tokens)
        self._prompt_lengths.observe(finished.num_prompt_tokens)
        self._tokens.add(finished.num_completion_tokens)
        self._lengths.observe(finished.num_completion_tokens)
        self._add_speculation(finished.speculation)

    def add_failure(self, code: str) -> None:
        """A request ended with an error."""
        self._failure.add(code=code)

    def _add_speculation(self, stats: SpeculationStats) -> None:
        self._drafts.add(stats.num_spec_steps)
        self._drafted.add(stats.num_draft_tokens)
        self._accepted.add(stats.num_accepted_draft_tokens)
        for position in range(len(stats.acceptance_histogram) - 1):
            # A draft of which `a` tokens stood has one at each position below `a`.
            stood = sum(stats.acceptance_histogram[position + 1 :])
            self._accepted_at.add(stood, position=str(position))
        for source, num_drafted in stats.num_drafted_by.items():
            self._drafted_by.add(num_drafted, source=source)
        for num_drafted, times in Counter(stats.per_step_drafted).items():
            self._k.observe(num_drafted, times=times)
        self._rounds.add(stats.num_rounds)
        for part in _PARTS:
            self._part_s.add(getattr(stats.time, f"{part}_ms") / 1e3, part=part)


class MeteredGenerator:
    """Measures every request of `generator`, its wait for admission included."""

    def __init__(self, generator: Generator, metrics: RequestMetrics) -> None:
        self._generator = generator
        self._metrics = metrics

    async def generate(
        self, request: GenerationRequest, detokenizer: Detokenizer
    ) -> AsyncGenerator[Delta | Finished, None]:
        """See `generation.Generator.generate`."""
        metrics = self._metrics
        began_s = time.perf_counter()
        last_s: float | None = None
        is_finished = False
        items = self._generator.generate(request, detokenizer)
        try:
            async with aclosing(cast("AsyncGenerator[Delta | Finished, None]", items)):
                async for item in items:
                    now_s = time.perf_counter()
                    if isinstance(item, Finished):
                        is_finished = True
                        metrics.add_finished(item, now_s - began_s)
                    elif item.token_ids:
                        if last_s is None:
                            metrics.add_first_tokens(now_s - began_s)
                        else:
                            metrics.add_tokens(len(item.token_ids), now_s - last_s)
                        last_s = now_s
                    yield item
        except ServingError as error:
            metrics.add_failure(error.code)
            raise
        except (GeneratorExit, asyncio.CancelledError):
            if not is_finished:
                metrics.add_failure(CLIENT_GONE)
            raise
        except Exception:
            metrics.add_failure("internal_error")
            raise
