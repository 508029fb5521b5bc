"""When a text ends: eos, max_tokens, stop strings. Fed one token at a time.

It is fed token by token for any size of a round, so the end does not depend on k. The same token
ends the text, and the same number of tokens is counted. Text that may be the beginning of a stop
string is held back until it cannot be one any more. Nothing that is complete within the first
`min_tokens` tokens stops the text.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from models.text.overlap import overlap
from router.types import Detokenizer, FinishReason


@dataclass(frozen=True, slots=True)
class StopResult:
    """The taken part of a round's tokens: `num_tokens` of them, and the text that they release.

    `offsets` has one entry for each token that the text now shows at least in part. Each token has
    one entry, in order. An entry is the number of characters of the whole text before it. A token
    without text of its own counts to the next one.
    """

    num_tokens: int
    text: str
    finish_reason: FinishReason | None
    offsets: tuple[int, ...] = ()


class StopChecker:
    """Turns committed tokens into text and says where the text ends."""

    def __init__(
        self,
        detokenizer: Detokenizer,
        *,
        eos_ids: Collection[int],
        stop: Sequence[str],
        max_tokens: int,
        min_tokens: int = 0,
        includes_stop: bool = False,
    ) -> None:
        self._detokenizer = detokenizer
        self._eos_ids = frozenset(eos_ids)
        self._stop = tuple(stop)
        self._max_tokens = max_tokens
        self._min_tokens = min_tokens
        self._includes_stop = includes_stop
        self._num_tokens = 0
        self._held = ""
        self._num_chars = 0  # characters of all tokens so far
        self._num_shown = 0  # released ones among these
        self._starts: deque[int] = deque()  # starts of tokens that are not shown yet

    @property
    def num_tokens(self) -> int:
        """Tokens taken so far, the one that ended the text included."""
        return self._num_tokens

    @property
    def remaining_tokens(self) -> int:
        """Tokens that may still follow."""
        return self._max_tokens - self._num_tokens

    def until_eos(self, token_ids: list[int]) -> list[int]:
        """Return the tokens up to the first eos, including it."""
        for index, token_id in enumerate(token_ids):
            if token_id in self._eos_ids:
                return token_ids[: index + 1]
        return token_ids

    def take(self, token_ids: Sequence[int]) -> StopResult:
        """Take the tokens of one round up to the end of the text, if it lies among them."""
        released: list[str] = []
        for index, token_id in enumerate(token_ids):
            self._num_tokens += 1
            finish_reason = self._take_one(token_id, released)
            if finish_reason is not None:
                return self._taken(index + 1, released, finish_reason)
        return self._taken(len(token_ids), released, None)

    def _taken(
        self, num_tokens: int, released: list[str], finish_reason: FinishReason | None
    ) -> StopResult:
        text = "".join(released)
        self._num_shown += len(text)
        shows_all = finish_reason is not None and self._num_shown == self._num_chars
        offsets: list[int] = []
        while self._starts and (shows_all or self._starts[0] < self._num_shown):
            offsets.append(self._starts.popleft())
        return StopResult(num_tokens, text, finish_reason, tuple(offsets))

    def _take_one(self, token_id: int, released: list[str]) -> FinishReason | None:
        is_eos = token_id in self._eos_ids
        text = ""
        if not is_eos or self._includes_stop:
            self._starts.append(self._num_chars)
            text = self._detokenizer.push((token_id,))
        if is_eos:
            released.append(self._end(text + self._detokenizer.flush()))
            return "stop"
        text, is_stopped = self._match(text)
        released.append(text)
        if is_stopped:
            return "stop"
        if self._num_tokens >= self._max_tokens:
            released.append(self._end(self._detokenizer.flush()))
            return "length"
        return None

    def _end(self, last_text: str) -> str:
        """Return all text still held back, cut at a stop string that the last piece completes."""
        text, is_stopped = self._match(last_text)
        if not is_stopped:
            text += self._held
        self._held = ""
        return text

    def _match(self, text: str) -> tuple[str, bool]:
        """Text that may go out now, and whether a stop string was found after it."""
        self._num_chars += len(text)
        if not self._stop:
            return text, False
        pending = self._held + text
        if self._num_tokens > self._min_tokens:
            found = [
                (start, len(stop))
                for stop in self._stop
                # One that ends in what was held was complete within `min_tokens`.
                if (start := pending.find(stop, max(len(self._held) - len(stop) + 1, 0))) >= 0
            ]
            if found:
                self._held = ""
                start, length = min(found)
                return pending[: start + length * self._includes_stop], True
        num_held = max(overlap(pending, stop) for stop in self._stop)
        split = len(pending) - num_held
        self._held = pending[split:]
        return pending[:split], False
