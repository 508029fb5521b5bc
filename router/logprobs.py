"""Matches the logprobs of tokens with the text that goes out.

The target sends an entry for every token it commits. An entry waits here until the text of its
token is shown. Text that may begin a stop string is held back, and text after a stop string is
never reported.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from models.protocol.errors import InternalError
from models.protocol.messages import TokenLogprobs, Verdict
from router.stops import StopResult
from router.types import ShownToken


class LogprobsOutbox:
    """Entries of one session; does nothing where none are asked for.

    Args:
        num_prompt_tokens: of the session.
        is_asked: whether there are entries for generated tokens.
        is_asked_for_prompt: whether there are entries for the prompt.
    """

    def __init__(
        self,
        num_prompt_tokens: int = 0,
        *,
        is_asked: bool = False,
        is_asked_for_prompt: bool = False,
    ) -> None:
        self._num_prompt_entries = max(num_prompt_tokens - 1, 0)
        self._is_asked = is_asked
        self._is_prompt_due = is_asked_for_prompt
        self._waiting: deque[TokenLogprobs] = deque()

    def of_prompt(self, verdict: Verdict) -> tuple[bytes, ...] | None:
        """Return the prompt's entries, packed, with the session's first verdict; None with others.

        Raises:
            InternalError: the target sent other ones than were asked for.
        """
        if not self._is_prompt_due:
            return None
        self._is_prompt_due = False
        _check(verdict.prompt_logprobs, self._num_prompt_entries, "prompt_logprobs")
        return tuple(verdict.prompt_logprobs)

    def shown(
        self, verdicts: Sequence[Verdict], num_tokens: int, taken: StopResult
    ) -> tuple[ShownToken, ...]:
        """Entries of the tokens whose text is shown now, in order; `num_tokens` came with these.

        Raises:
            InternalError: the target sent too few.
        """
        if not self._is_asked:
            return ()
        entries = [entry for verdict in verdicts for entry in verdict.logprobs][:num_tokens]
        _check(entries, num_tokens, "logprobs")
        self._waiting.extend(entries[: taken.num_tokens])
        return tuple(ShownToken(offset, self._waiting.popleft()) for offset in taken.offsets)


def _check(entries: Sequence[object], num_due: int, field: str) -> None:
    if len(entries) != num_due:
        raise InternalError(f"the target sent {len(entries)} {field}, {num_due} were due")
