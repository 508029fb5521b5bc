"""Metrics of a router's requests, under vLLM's names if vLLM has one.

The metrics are a sink of the observers of choices (`api.observer`). Names and units are those of
vLLM's production metrics, so that its dashboards and tools work unchanged. Other names begin with
`outrider:`.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import fields

from deployments.api.observer import Sink
from deployments.ingress.lookahead_metrics import LookaheadMetrics
from deployments.serve.instruments import Meters
from router.types import Finished, SpeculationStats, TimeSplit

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

_PUBLISH_PERIOD_S = 1.0

_PARTS = tuple(field.name.removesuffix("_ms") for field in fields(TimeSplit))


class _State:
    """Gauges of what is so now; they are set again and again, see `Gauge`."""

    def __init__(self, meters: Meters, num_keys_refused: Callable[[], int]) -> None:
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
        self._num_keys_refused = num_keys_refused
        self.num_running = self.num_waiting = 0
        self.is_refused = False

    def publish(self) -> None:
        self._running.set(self.num_running)
        self._waiting.set(self.num_waiting)
        self._refused.set(float(self.is_refused))
        self._keys_refused.set(self._num_keys_refused())


class _Requests:
    """The ends of requests, and the durations of requests and of their tokens."""

    def __init__(self, meters: Meters) -> None:
        self.success = meters.counter(
            "vllm:request_success", "Requests that ended as they should", ["finished_reason"]
        )
        self.failure = meters.counter(
            "outrider:request_failure", "Requests that ended with an error, by its code", ["code"]
        )
        self.first_token_s = meters.histogram(
            "vllm:time_to_first_token_seconds", "From request to first token", _FIRST_TOKEN_S
        )
        self.gap_s = meters.histogram(
            "vllm:inter_token_latency_seconds",
            "Between two tokens of a stream; tokens that came together share their time",
            _TOKEN_GAP_S,
        )
        self.request_s = meters.histogram(
            "vllm:e2e_request_latency_seconds", "From request to last token", _REQUEST_S
        )


class _Tokens:
    """Tokens of the requests that ended as they should."""

    def __init__(self, meters: Meters) -> None:
        self._prompt = meters.counter("vllm:prompt_tokens", "Prompt tokens taken in")
        self._generated = meters.counter("vllm:generation_tokens", "Tokens generated")
        self._prompt_lengths = meters.histogram(
            "vllm:request_prompt_tokens", "Prompt tokens of a request", _TOKENS
        )
        self._lengths = meters.histogram(
            "vllm:request_generation_tokens", "Generated tokens of a request", _TOKENS
        )

    def add(self, num_prompt_tokens: int, num_completion_tokens: int) -> None:
        self._prompt.add(num_prompt_tokens)
        self._prompt_lengths.observe(num_prompt_tokens)
        self._generated.add(num_completion_tokens)
        self._lengths.observe(num_completion_tokens)


class _Speculation:
    """The effects of speculation on these requests."""

    def __init__(self, meters: Meters) -> None:
        self._drafts = meters.counter("vllm:spec_decode_num_drafts", "Rounds with a draft")
        self._drafted = meters.counter(
            "vllm:spec_decode_num_draft_tokens", "Draft tokens that were verified"
        )
        self._accepted = meters.counter(
            "vllm:spec_decode_num_accepted_tokens", "Draft tokens that were accepted"
        )
        self._accepted_at = meters.counter(
            "vllm:spec_decode_num_accepted_tokens_per_pos",
            "Draft tokens that were accepted, by their position in the draft",
            ["position"],
        )
        self._drafted_by = meters.counter(
            "outrider:draft_tokens", "Draft tokens that were verified, by who drafted", ["source"]
        )
        self._accepted_by = meters.counter(
            "outrider:accepted_draft_tokens",
            "Draft tokens that were accepted, by who drafted",
            ["source"],
        )
        self._guessed = meters.counter(
            "outrider:guess_tokens", "Tokens sent to the draft model as a guess of its draft"
        )
        self._guessed_right = meters.counter(
            "outrider:right_guess_tokens", "Those of them that it drafted: each saved it a step"
        )
        self._k = meters.histogram(
            "outrider:draft_length", "Tokens drafted in a round with a draft", _DRAFT_LENGTHS
        )
        self._rounds = meters.counter("outrider:rounds", "Verdicts, plain steps included")
        self._part_s = meters.counter(
            "outrider:round_seconds", "Where rounds spent their time", ["part"]
        )

    def add(self, stats: SpeculationStats) -> None:
        self._drafts.add(stats.num_spec_steps)
        self._drafted.add(stats.num_draft_tokens)
        self._accepted.add(stats.num_accepted_draft_tokens)
        for position in range(len(stats.acceptance_histogram) - 1):
            # A draft of which `a` tokens were accepted has one at each position below `a`.
            num_accepted = sum(stats.acceptance_histogram[position + 1 :])
            self._accepted_at.add(num_accepted, position=str(position))
        for source, num_drafted in stats.num_drafted_by.items():
            self._drafted_by.add(num_drafted, source=source)
            self._accepted_by.add(stats.num_accepted_by.get(source, 0), source=source)
        self._guessed.add(stats.num_guess_tokens)
        self._guessed_right.add(stats.num_right_guess_tokens)
        for num_drafted, times in Counter(stats.per_step_drafted).items():
            self._k.observe(num_drafted, times=times)
        self._rounds.add(stats.num_rounds)
        for part in _PARTS:
            self._part_s.add(getattr(stats.time, f"{part}_ms") / 1e3, part=part)


class RequestMetrics(Sink):
    """The instruments of one router process.

    Args:
        meters: makes them.
        num_keys_refused: how many lines of the file of API keys are skipped now.
    """

    def __init__(self, meters: Meters, num_keys_refused: Callable[[], int] = lambda: 0) -> None:
        self._meters = meters
        self._state = _State(meters, num_keys_refused)
        self._requests = _Requests(meters)
        self._tokens = _Tokens(meters)
        self._speculation = _Speculation(meters)
        self._lookaheads = LookaheadMetrics(meters)
        self.last_progress_s = -math.inf  # time.monotonic when any choice last got something
        self._state.publish()

    def text(self) -> bytes:
        """Return all instruments in Prometheus' text format."""
        return self._meters.text()

    def set_load(self, num_running: int, num_waiting: int) -> None:
        """Take in how many requests run and wait now."""
        self._state.num_running, self._state.num_waiting = num_running, num_waiting
        self._state.publish()

    @property
    def load(self) -> tuple[int, int]:
        """The numbers of requests that run and wait now."""
        return self._state.num_running, self._state.num_waiting

    def set_refused(self, is_refused: bool) -> None:
        """Take in whether the newest `user_config` was refused."""
        self._state.is_refused = is_refused
        self._state.publish()

    async def publish_forever(self, period_s: float = _PUBLISH_PERIOD_S) -> None:
        """Set all gauges every `period_s` seconds, for a mirror that forgets old ones. Endless."""
        while True:
            await asyncio.sleep(period_s)
            self._state.publish()

    def first_tokens(self, choice: int, num_tokens: int, after_s: float) -> None:
        """See `Sink.first_tokens`."""
        self.last_progress_s = time.monotonic()
        self._requests.first_token_s.observe(after_s)

    def more_tokens(self, choice: int, num_tokens: int, gap_s: float) -> None:
        """See `Sink.more_tokens`."""
        self.last_progress_s = time.monotonic()
        self._requests.gap_s.observe(gap_s / num_tokens, times=num_tokens)

    def finished(self, choice: int, end: Finished, after_s: float) -> None:
        """See `Sink.finished`."""
        self.last_progress_s = time.monotonic()
        self._requests.success.add(finished_reason=end.finish_reason)
        self._requests.request_s.observe(after_s)
        self._tokens.add(end.num_prompt_tokens, end.num_completion_tokens)
        self._speculation.add(end.speculation)
        if end.lookahead is not None:
            self._lookaheads.add(end.lookahead)

    def failed(self, choice: int, code: str) -> None:
        """See `Sink.failed`."""
        self._requests.failure.add(code=code)

    def refused(self, code: str) -> None:
        """Note that a request was refused before it had a choice to observe."""
        self._requests.failure.add(code=code)
