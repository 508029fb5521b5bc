"""Guards a session's grammar: validates tokens, and gets over lost masks.

The target asks the constraint service for masks by itself. If they cannot be had, the verify fails
and the grammar is opened on another replica. The round is planned and asked for again.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Self

from models.backoff import Backoff
from models.protocol.errors import ConstraintViolation, MaskUnavailable
from models.protocol.forced import Forced
from models.protocol.grammars import Loosened
from models.protocol.token_sequence import TokenSequence
from router.ports import Constrainer
from router.stats import RoundStats

_MAX_MASK_LOSSES = 6  # times in a row that masks may be lost before the request fails
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.5, 4.0  # before the grammar is opened again, from the second


class NoGrammar:
    """Guards a text that may be anything: every token is valid, and no masks can be lost."""

    loosened: Sequence[Loosened] = ()

    async def open(self) -> None:
        """Do nothing: there is no grammar to open."""

    async def validate(self, tokens: Sequence[int]) -> None:
        """Accept every token."""

    def surviving_mask_loss(self) -> Self:
        """Return a context in which masks may be lost; here they cannot be."""
        return self

    async def __aenter__(self) -> None: ...

    async def __aexit__(self, *_: object) -> bool:
        return False

    async def close(self) -> None:
        """Do nothing: there is no grammar to close."""


class GrammarGuard:
    """Guards a text that must obey a grammar.

    Args:
        constrainer: of the session; it is closed with this.
        generated: the text so far, without the prompt.
        stats: where waits are counted.
        on_forced: told which tokens are new and what is forced after them.
    """

    def __init__(
        self,
        constrainer: Constrainer,
        generated: TokenSequence,
        stats: RoundStats,
        on_forced: Callable[[Sequence[int], Forced], None] | None = None,
    ) -> None:
        self._constrainer = constrainer
        self._generated = generated
        self._stats = stats
        self._on_forced = on_forced or (lambda tokens, forced: None)
        self._num_losses = 0  # losses of masks in a row
        self._backoff = Backoff(_FIRST_PAUSE_S, _LONGEST_PAUSE_S)

    @property
    def loosened(self) -> Sequence[Loosened]:
        """The parts of the grammar that are not enforced; known when it is open."""
        return self._constrainer.loosened

    async def open(self) -> None:
        """Compile the grammar.

        Raises:
            UnsupportedGrammar: the grammar is refused.
            Unavailable: no constraint replica answers.
        """
        asked_at = time.perf_counter()
        self._on_forced((), await self._constrainer.open())
        self._stats.add_grammar(asked_at)

    async def validate(self, tokens: Sequence[int]) -> None:
        """Check a verdict's tokens before anything of them is emitted.

        Raises:
            ConstraintViolation: one of them breaks the grammar, which masks should have prevented.
            Unavailable: the constraint replica is lost and no other was to be had in time.
        """
        self._num_losses = 0  # a verdict came, so masks did
        self._backoff.reset()
        asked_at = time.perf_counter()
        answer = await self._constrainer.commit(self._generated, tokens)
        self._stats.add_grammar(asked_at)
        if answer.num_valid < len(tokens):
            position = len(self._generated) + answer.num_valid
            raise ConstraintViolation(
                f"token {tokens[answer.num_valid]} at output position {position} breaks the "
                f"grammar: {answer.message}"
            )
        self._on_forced(tokens, answer.forced)

    def surviving_mask_loss(self) -> Self:
        """Return a context that a `MaskUnavailable` leaves with the grammar open elsewhere.

        Raises:
            MaskUnavailable: on leaving it, when masks were lost too often in a row.
        """
        return self

    async def __aenter__(self) -> None: ...

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> bool:
        if not isinstance(error, MaskUnavailable):
            return False
        self._num_losses += 1
        if self._num_losses > _MAX_MASK_LOSSES:
            raise MaskUnavailable(
                f"masks lost {self._num_losses} times in a row, at most {_MAX_MASK_LOSSES} are "
                f"survived; at last: {error.message}"
            ) from error
        asked_at = time.perf_counter()
        if self._num_losses > 1:  # a connection that broke may be back soon
            self._backoff.note_failure()
            await asyncio.sleep(self._backoff.pause_s)
        self._on_forced((), await self._constrainer.reopen())
        self._stats.add_grammar(asked_at)
        return True

    async def close(self) -> None:
        """Free the session on the constraint replica. Idempotent; never raises."""
        await self._constrainer.close()
