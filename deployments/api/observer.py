"""Measures the choices of a request once, and reports to every sink: the log line and the metrics.

A `ChoiceObserver` follows one choice from its wait for a place to its end. It is a context manager
around the generation and is shown each item. So it adds no generator of its own.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from types import TracebackType

from models.protocol.errors import ServingError
from router.types import Delta, Finished

CLIENT_GONE = "client_gone"  # the code of a request whose client left


class Sink:
    """Takes in what was observed of choices; a subclass overrides what it has a use for.

    Times are seconds. `after_s` counts from the moment at which the choice could have begun, so it
    includes the wait for a place. `choice` is the index within the request.
    """

    def tokens(self, choice: int, delta: Delta) -> None:
        """Tokens of a choice arrived, all of the same verdicts; said before the next two."""

    def first_tokens(self, choice: int, num_tokens: int, after_s: float) -> None:
        """Note that the first `num_tokens` tokens of a choice arrived."""

    def more_tokens(self, choice: int, num_tokens: int, gap_s: float) -> None:
        """`num_tokens` tokens arrived together, `gap_s` after those before them."""

    def finished(self, choice: int, end: Finished, after_s: float) -> None:
        """Note that a choice was generated to its end."""

    def phases(self, choice: int, queue_s: float, prefill_s: float, decode_s: float) -> None:
        """Note how long a choice waited for a place, then for its first token, and then wrote.

        It is said just before `finished`, of choices that have tokens.
        """

    def failed(self, choice: int, code: str) -> None:
        """Note that a choice ended with an error of this code, or was left (`CLIENT_GONE`)."""

    def refused(self, code: str) -> None:
        """Note that a request was refused before it had a choice to observe."""
        self.failed(0, code)


class ChoiceObserver:
    """Observes one choice within a `with` block.

    It reports `finished` or `failed`, and `failed` too if an error follows the end.

    Args:
        choice: its index within the request.
        sinks: what it reports to, in order.
        clock: seconds, monotonic.
    """

    def __init__(
        self, choice: int, sinks: Sequence[Sink], clock: Callable[[], float] = time.perf_counter
    ) -> None:
        self._choice = choice
        self._sinks = sinks
        self._clock = clock
        self._began_s = self._admitted_s = self._first_s = 0.0
        self._last_s: float | None = None  # when tokens last arrived
        self._is_finished = False

    def __enter__(self) -> None:
        self._began_s = self._admitted_s = self._clock()

    def admit(self) -> None:
        """Note that the choice has its place."""
        self._admitted_s = self._clock()

    def add(self, item: Delta | Finished) -> None:
        """Take in the next item."""
        now_s = self._clock()
        if isinstance(item, Finished):
            self._is_finished = True
            for sink in self._sinks:
                if self._last_s is not None:
                    queue_s = self._admitted_s - self._began_s
                    prefill_s, decode_s = self._first_s - self._admitted_s, now_s - self._first_s
                    sink.phases(self._choice, queue_s, prefill_s, decode_s)
                sink.finished(self._choice, item, now_s - self._began_s)
        elif item.token_ids and item.num_verdicts > 0:  # else the client had them already
            last_s, self._last_s = self._last_s, now_s
            self._first_s = self._first_s if last_s is not None else now_s
            for sink in self._sinks:
                sink.tokens(self._choice, item)
                if last_s is None:
                    sink.first_tokens(self._choice, len(item.token_ids), now_s - self._began_s)
                else:
                    sink.more_tokens(self._choice, len(item.token_ids), now_s - last_s)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        is_left = isinstance(error, GeneratorExit | asyncio.CancelledError)
        if self._is_finished and (error is None or is_left):
            return  # the routes stop at the last item
        if is_left:
            code = CLIENT_GONE
        else:
            code = error.code if isinstance(error, ServingError) else "internal_error"
        for sink in self._sinks:
            sink.failed(self._choice, code)
