"""Metrics of a router's requests, under vLLM's names if vLLM has one.

The metrics are a sink of the observers of choices (`api.observer`). Names and units are those of
vLLM's production metrics, so that its dashboards and tools work unchanged. Other names begin with
`outrider:`.
"""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, fields

from deployments.api.observer import Sink
from deployments.ingress.lookahead_metrics import METRICS as LOOKAHEADS
from deployments.serve.instruments import Meters
from deployments.serve.metrics import Metric, Table, counter, gauge
from router.stats import SpeculationStats, TimeSplit
from router.types import Delta, Finished

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

_PARTS = tuple(field.name.removesuffix("_ms") for field in fields(TimeSplit))


@dataclass(slots=True)
class _State:
    """The present state of a router."""

    num_keys_refused: Callable[[], int]
    num_running: int = 0
    num_waiting: int = 0
    is_refused: bool = False


STATE: tuple[Metric[_State], ...] = (
    gauge("vllm:num_requests_running", "Requests being generated", lambda now: now.num_running),
    gauge("vllm:num_requests_waiting", "Requests waiting for a place", lambda now: now.num_waiting),
    gauge(
        "outrider:user_config_refused",
        "1: the newest user_config was refused and the limits before it are in force",
        lambda now: now.is_refused,
    ),
    gauge(
        "outrider:api_keys_refused",
        "Lines of the API key file that are skipped; 1 while it cannot be read",
        lambda now: now.num_keys_refused(),
    ),
)
TOKENS: tuple[Metric[Finished], ...] = (
    counter("vllm:prompt_tokens", "Prompt tokens taken in", lambda end: end.num_prompt_tokens),
)
SPECULATION: tuple[Metric[SpeculationStats], ...] = (
    counter(
        "vllm:spec_decode_num_drafts", "Rounds with a draft", lambda stats: stats.num_spec_steps
    ),
    counter(
        "vllm:spec_decode_num_draft_tokens",
        "Draft tokens that were verified",
        lambda stats: stats.num_draft_tokens,
    ),
    counter(
        "vllm:spec_decode_num_accepted_tokens",
        "Draft tokens that were accepted",
        lambda stats: stats.num_accepted_draft_tokens,
    ),
    counter(
        "vllm:spec_decode_num_accepted_tokens_per_pos",
        "Draft tokens that were accepted, by their position in the draft",
        lambda stats: {
            (str(position),): sum(number > position for number in stats.per_step_accepted)
            for position in range(stats.num_spec_tokens)
        },
        "position",
    ),
    counter(
        "outrider:draft_tokens",
        "Draft tokens that were verified, by who drafted",
        lambda stats: {(source,): number for source, number in stats.num_drafted_by.items()},
        "source",
    ),
    counter(
        "outrider:accepted_draft_tokens",
        "Draft tokens that were accepted, by who drafted",
        lambda stats: {
            (source,): stats.num_accepted_by.get(source, 0) for source in stats.num_drafted_by
        },
        "source",
    ),
    counter(
        "outrider:guess_tokens",
        "Tokens sent to the draft model as guesses of its draft",
        lambda stats: stats.num_guess_tokens,
    ),
    counter(
        "outrider:right_guess_tokens",
        "Guesses that the draft model drafted: each saved it a step",
        lambda stats: stats.num_right_guess_tokens,
    ),
    counter(
        "outrider:ahead_tokens",
        "Draft tokens that were drafted while the target verified, before they were asked for",
        lambda stats: stats.num_ahead_tokens,
    ),
    counter("outrider:rounds", "Verdicts, plain steps included", lambda stats: stats.num_rounds),
    counter(
        "outrider:round_seconds",
        "Where rounds spent their time",
        lambda stats: {(part,): getattr(stats.time, f"{part}_ms") / 1e3 for part in _PARTS},
        "part",
    ),
)


class _Events:
    """The ends of requests, their durations and lengths."""

    def __init__(self, meters: Meters) -> None:
        self.success = meters.counter(
            "vllm:request_success", "Requests that ended as they should", ["finished_reason"]
        )
        self.constrained = meters.counter(
            "outrider:constrained_requests",
            "Requests under a grammar that ended; by length: cut off, so their JSON does not parse",
            ["finished_reason"],
        )
        self.generated = meters.counter(
            "vllm:generation_tokens", "Tokens generated, within a second"
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
        self.queue_s = meters.histogram(
            "vllm:request_queue_time_seconds", "From request to its place on the router", _REQUEST_S
        )
        self.prefill_s = meters.histogram(
            "vllm:request_prefill_time_seconds",
            "From there to the first token, the wait for a target included",
            _REQUEST_S,
        )
        self.decode_s = meters.histogram(
            "vllm:request_decode_time_seconds", "From the first token to the end", _REQUEST_S
        )
        self.prompt_length = meters.histogram(
            "vllm:request_prompt_tokens", "Prompt tokens of a request", _TOKENS
        )
        self.length = meters.histogram(
            "vllm:request_generation_tokens", "Generated tokens of a request", _TOKENS
        )
        self.draft_length = meters.histogram(
            "outrider:draft_length", "Tokens drafted in a round with a draft", _DRAFT_LENGTHS
        )

    def finished(self, end: Finished, after_s: float) -> None:
        self.success.add(finished_reason=end.finish_reason)
        if end.has_grammar:
            self.constrained.add(finished_reason=end.finish_reason)
        self.request_s.observe(after_s)
        self.prompt_length.observe(end.num_prompt_tokens)
        self.length.observe(end.num_completion_tokens)
        for num_drafted, times in Counter(end.speculation.per_step_drafted).items():
            self.draft_length.observe(num_drafted, times=times)


class RequestMetrics(Sink):
    """The instruments of one router process.

    Args:
        meters: makes them.
        num_keys_refused: how many lines of the file of API keys are skipped now.
    """

    def __init__(self, meters: Meters, num_keys_refused: Callable[[], int] = lambda: 0) -> None:
        self._meters = meters
        self._now = _State(num_keys_refused)
        self._state = Table(meters, STATE)
        self._events = _Events(meters)
        self._tokens = Table(meters, TOKENS)
        self._speculation = Table(meters, SPECULATION)
        self._lookaheads = Table(meters, LOOKAHEADS)
        self._num_generated = 0  # not yet published: a record costs more than the rest of an event
        self.last_progress_s = -math.inf  # time.monotonic when any choice last got something
        self.publish()

    def text(self) -> bytes:
        """Return all instruments in Prometheus' text format."""
        self.publish()
        return self._meters.text()

    def set_load(self, num_running: int, num_waiting: int) -> None:
        """Take in how many requests run and wait now."""
        self._now.num_running, self._now.num_waiting = num_running, num_waiting
        self.publish()

    @property
    def load(self) -> tuple[int, int]:
        """The numbers of requests that run and wait now."""
        return self._now.num_running, self._now.num_waiting

    def set_refused(self, is_refused: bool) -> None:
        """Take in whether the newest `user_config` was refused."""
        self._now.is_refused = is_refused
        self.publish()

    def tokens(self, choice: int, delta: Delta) -> None:
        """See `Sink.tokens`; those of requests that fail or are left count too."""
        self._num_generated += len(delta.token_ids)

    def first_tokens(self, choice: int, num_tokens: int, after_s: float) -> None:
        """See `Sink.first_tokens`."""
        self.last_progress_s = time.monotonic()
        self._events.first_token_s.observe(after_s)

    def more_tokens(self, choice: int, num_tokens: int, gap_s: float) -> None:
        """See `Sink.more_tokens`."""
        self.last_progress_s = time.monotonic()
        self._events.gap_s.observe(gap_s / num_tokens, times=num_tokens)

    def phases(self, choice: int, queue_s: float, prefill_s: float, decode_s: float) -> None:
        """See `Sink.phases`."""
        self._events.queue_s.observe(queue_s)
        self._events.prefill_s.observe(prefill_s)
        self._events.decode_s.observe(decode_s)

    def finished(self, choice: int, end: Finished, after_s: float) -> None:
        """See `Sink.finished`."""
        self.last_progress_s = time.monotonic()
        self._events.finished(end, after_s)
        self._tokens.add(end)
        self._speculation.add(end.speculation)
        if end.lookahead is not None:
            self._lookaheads.add(end.lookahead)

    def failed(self, choice: int, code: str) -> None:
        """See `Sink.failed`."""
        self._events.failure.add(code=code)

    def publish(self) -> None:
        """Write what is not written at once: the present state, and the tokens since the last."""
        self._events.generated.add(self._num_generated)
        self._num_generated = 0
        self._state.follow(self._now)
