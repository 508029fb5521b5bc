"""One session on the target whose text may go back and go on another way.

A look-ahead is a guess of a text: a draft that is not kept, a roll-out of a candidate. The session
stays open between them, so that the target keeps what the next text begins with. A new one finds
the prefix of its siblings in the target's prefix cache.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from contextlib import AbstractAsyncContextManager, aclosing, nullcontext
from dataclasses import dataclass

from models.protocol.messages import DraftProbs, TokenLogprobs, Verdict
from models.protocol.token_sequence import TokenSequence
from router.ports import Verifier
from router.remote.engine import EngineClient

TakeRows = Callable[[int], AbstractAsyncContextManager[None]]


@dataclass(frozen=True, slots=True)
class PlainStep:
    """A token of the target's own, and its logprobs where they are asked for."""

    token: int
    logprobs: TokenLogprobs | None


class Branch:
    """Verifies and runs on after any text.

    Args:
        client: of the session.
        verifier: over the same client.
        eos_ids: that end a text.
        take_rows: holds so many rows of the target's passes; see `RolloutPlaces.rows`.

    Attributes:
        num_passes: of the target for this session: verifications and single steps.
        num_cached_tokens: of the first text, found in the target's prefix cache.
    """

    def __init__(
        self,
        client: EngineClient,
        verifier: Verifier,
        eos_ids: Collection[int] = (),
        take_rows: TakeRows = lambda num_rows: nullcontext(),
    ) -> None:
        self._client = client
        self._verifier = verifier
        self._eos_ids = eos_ids
        self._take_rows = take_rows
        self._held = TokenSequence()  # tokens of the session that the target may have
        self._start = 0  # length up to which texts are alike, most likely
        self.num_passes = 0
        self.num_cached_tokens = 0

    async def verify(
        self, text: TokenSequence, draft: Sequence[int], draft_probs: DraftProbs | None = None
    ) -> Verdict:
        """Have a draft after `text` verified; see `ports.Verifier.verify`."""
        self._go_back(text)
        async with (
            self._take_rows(1 + len(draft)),
            aclosing(self._verifier.verify(text, draft, 0, draft_probs)) as verdicts,
        ):
            verdict = await anext(verdicts)
        self._held = text.followed_by([*draft[: verdict.num_accepted], verdict.token])
        self._count(verdict)
        return verdict

    async def run(self, text: TokenSequence, num_tokens: int) -> list[PlainStep]:
        """Have the target go on alone after `text`, for `num_tokens` or up to an end of the text.

        Raises:
            Unavailable: as `ports.Verifier.verify`.
        """
        async with self._take_rows(1):
            return await self._run(text, num_tokens)

    async def _run(self, text: TokenSequence, num_tokens: int) -> list[PlainStep]:
        steps: list[PlainStep] = []
        self._go_back(text)
        self._held = text.followed_by(())
        while len(steps) < num_tokens:  # again where a replica was lost on the way
            run_on = num_tokens - len(steps) - 1
            async with aclosing(self._verifier.verify(self._held, (), run_on)) as verdicts:
                async for verdict in verdicts:
                    self._held.extend([verdict.token])
                    self._count(verdict)
                    logprobs = verdict.logprobs[0] if verdict.logprobs else None
                    steps.append(PlainStep(verdict.token, logprobs))
                    if verdict.token in self._eos_ids:
                        return steps
        return steps

    async def close(self) -> None:
        """Free the session. Idempotent; never raises."""
        await self._verifier.close()

    def _count(self, verdict: Verdict) -> None:
        if self.num_passes == 0:
            self.num_cached_tokens = verdict.num_cached_tokens
        self.num_passes += 1

    def _go_back(self, text: TokenSequence) -> None:
        """Have the next message name a prefix that this text and the target's cache share."""
        start = min(self._start, len(self._held))
        if not text.holds(start, self._held.hash_at(start)):
            start = 0
        num_common = start + text.num_common(start, self._held.ids[start:])
        self._client.agreed_len = min(self._client.agreed_len, num_common)
        self._start = max(len(text) - 1, 0)
