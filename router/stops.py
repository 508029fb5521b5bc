"""When a text ends: eos, max_tokens, stop strings. Fed one token at a time.

Feeding token by token, whatever the size of a round, makes the end independent of k: the same
token ends the text, and the same number of tokens is counted. Text that may be the beginning of
a stop string is held back until it cannot be one any more.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from router.generation import Detokenizer, FinishReason


@dataclass(frozen=True, slots=True)
class Taken:
    """What was taken of a round's tokens: `num_tokens` of them, the text they release."""

    num_tokens: int
    text: str
    finish_reason: FinishReason | None


class StopChecker:
    """Turns committed tokens into text and says where the text ends."""

    def __init__(
        self,
        detokenizer: Detokenizer,
        *,
        eos_ids: Collection[int],
        stop: Sequence[str],
        max_tokens: int,
    ) -> None:
        self._detokenizer = detokenizer
        self._eos_ids = frozenset(eos_ids)
        self._stop = tuple(stop)
        self._max_tokens = max_tokens
        self._num_tokens = 0
        self._held = ""

    @property
    def num_tokens(self) -> int:
        """Tokens taken so far, the one that ended the text included."""
        return self._num_tokens

    @property
    def remaining_tokens(self) -> int:
        """Tokens that may still follow."""
        return self._max_tokens - self._num_tokens

    def until_eos(self, token_ids: list[int]) -> list[int]:
        """The tokens up to the first eos, that one included."""
        for index, token_id in enumerate(token_ids):
            if token_id in self._eos_ids:
                return token_ids[: index + 1]
        return token_ids

    def take(self, token_ids: Sequence[int]) -> Taken:
        """Take the tokens of one round up to the end of the text, if it lies among them."""
        released: list[str] = []
        for index, token_id in enumerate(token_ids):
            self._num_tokens += 1
            finish_reason = self._take_one(token_id, released)
            if finish_reason is not None:
                return Taken(index + 1, "".join(released), finish_reason)
        return Taken(len(token_ids), "".join(released), None)

    def _take_one(self, token_id: int, released: list[str]) -> FinishReason | None:
        if token_id in self._eos_ids:
            released.append(self._end(self._detokenizer.flush()))
            return "stop"
        text, is_stopped = self._match(self._detokenizer.push((token_id,)))
        released.append(text)
        if is_stopped:
            return "stop"
        if self._num_tokens >= self._max_tokens:
            released.append(self._end(self._detokenizer.flush()))
            return "length"
        return None

    def _end(self, last_text: str) -> str:
        """All text still held back; a stop string completed by the last piece still cuts it."""
        text, is_stopped = self._match(last_text)
        if not is_stopped:
            text += self._held
        self._held = ""
        return text

    def _match(self, text: str) -> tuple[str, bool]:
        """Text that may go out now, and whether a stop string was found behind it."""
        if not self._stop:
            return text, False
        pending = self._held + text
        found = [at for at in (pending.find(stop) for stop in self._stop) if at >= 0]
        if found:
            self._held = ""
            return pending[: min(found)], True
        num_held = max(_overlap(pending, stop) for stop in self._stop)
        split = len(pending) - num_held
        self._held = pending[split:]
        return pending[:split], False


def _overlap(text: str, stop: str) -> int:
    """Length of the longest end of `text` that is a proper beginning of `stop`."""
    for length in range(min(len(text), len(stop) - 1), 0, -1):
        if stop.startswith(text[-length:]):
            return length
    return 0
