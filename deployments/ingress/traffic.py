"""One line of the log a minute: what a router's requests got, altogether.

Tokens count when they come, so a long stream is seen while it runs. k, acceptance and failures
count when a request ends. A minute in which nothing happened leaves no line.
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from deployments.api.observer import Sink
from router.types import Finished

logger = logging.getLogger(__name__)


@dataclass(slots=True)
class _Sums:
    """The sums since the last line."""

    num_finished: int = 0
    num_tokens: int = 0
    num_first: int = 0
    first_token_s: float = 0.0  # sum
    num_rounds: int = 0
    num_drafted: int = 0
    num_accepted: int = 0
    failures: Counter[str] = field(default_factory=Counter)  # by code


class TrafficLine(Sink):
    """Adds up what observers of choices report, and writes it to the log.

    Args:
        load: how many requests run and wait now.
        clock: seconds, monotonic.
    """

    def __init__(
        self, load: Callable[[], tuple[int, int]], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._load = load
        self._clock = clock
        self._sums = _Sums()
        self._since_s = clock()

    def first_tokens(self, choice: int, num_tokens: int, after_s: float) -> None:
        """See `Sink.first_tokens`."""
        self._sums.num_first += 1
        self._sums.first_token_s += after_s
        self._sums.num_tokens += num_tokens

    def more_tokens(self, choice: int, num_tokens: int, gap_s: float) -> None:
        """See `Sink.more_tokens`."""
        self._sums.num_tokens += num_tokens

    def finished(self, choice: int, end: Finished, after_s: float) -> None:
        """See `Sink.finished`."""
        sums, stats = self._sums, end.speculation
        sums.num_finished += 1
        sums.num_rounds += stats.num_rounds
        sums.num_drafted += stats.num_draft_tokens
        sums.num_accepted += stats.num_accepted_draft_tokens

    def failed(self, choice: int, code: str) -> None:
        """See `Sink.failed`."""
        self._sums.failures[code] += 1

    def log(self) -> None:
        """Write the line of the time since the last one, if anything happened."""
        sums, self._sums = self._sums, _Sums()
        now_s = self._clock()
        elapsed_s, self._since_s = now_s - self._since_s, now_s
        running, waiting = self._load()
        if not (sums.num_finished or sums.num_tokens or sums.failures or running or waiting):
            return
        fields = {
            "requests": sums.num_finished,
            "failures": dict(sums.failures),
            "tokens_per_s": _share(sums.num_tokens, elapsed_s, 1),
            "ttft_s": _share(sums.first_token_s, sums.num_first),
            "mean_k": _share(sums.num_drafted, sums.num_rounds),
            "acceptance_rate": _share(sums.num_accepted, sums.num_drafted),
            "running": running,
            "waiting": waiting,
        }
        failures = ", ".join(f"{n} {code}" for code, n in sorted(sums.failures.items()))
        logger.info(
            "traffic of %.0f s: %s requests done%s, %s tokens/s, first token after %s s, k %s, "
            "accepted %s; %s running, %s waiting",
            elapsed_s,
            fields["requests"],
            f" ({failures})" if failures else "",
            *(
                "-" if fields[name] is None else fields[name]
                for name in ("tokens_per_s", "ttft_s", "mean_k", "acceptance_rate")
            ),
            running,
            waiting,
            extra=fields,
        )


def _share(part: float, whole: float, digits: int = 3) -> float | None:
    """Return one number over the other; None if the other is zero."""
    return round(part / whole, digits) if whole else None
