"""The `Drafter` over the protocol: a draft model on a leased replica, lost and rejoined quietly.

Connecting and prefilling run in the background. `is_ready` is False until the draft model has
caught up, and the loop goes on without it. A proposal that fails or comes too late does the same.
The lease is kept after a late one if the replica answers soon. If other sessions hold the KV blocks
it needs, it asks again after growing pauses, on the same lease. The lease is given back for good
once the text is as long as the draft model can read. A text never gets shorter. The same holds if
replicas refuse the text for a token that the draft model does not have.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import aclosing
from functools import partial

from models.protocol.errors import (
    ContextTooLong,
    InternalError,
    LinkLost,
    ServingError,
    Unavailable,
)
from models.protocol.messages import Proposal, Propose
from models.protocol.token_sequence import TokenSequence
from router.limits import SessionLimits
from router.remote.engine import EngineClient

# A draft that is cut by its deadline must be back before the wait for it ends: giving up the wait
# gives up the lease and the cache with it.
_DEADLINE_SHARE = 0.8
_MAX_REFUSALS = 3  # answers that nothing can be drafted here; leases in between


class RemoteDrafter:
    """Implements `ports.Drafter`.

    Args:
        session: on the draft model.
        limits: of waits.
        committed: the text.
        mask_wait_ms: that masks may be late before they end a draft; 0: as the engine has it.
        num_branches: outcomes that the engine may draft after meanwhile, as planned now.
    """

    def __init__(
        self,
        session: EngineClient,
        limits: SessionLimits,
        committed: TokenSequence,
        mask_wait_ms: float = 0.0,
        num_branches: Callable[[], int] = int,
    ) -> None:
        self._session = session
        self._limits = limits
        self._mask_wait_ms = mask_wait_ms
        self._num_branches = num_branches
        self._committed = committed
        self._is_caught_up = False
        self._proposed_at = 0  # committed length at which the last proposal was made
        self._proposed: list[int] = []
        self._is_closed = False
        self._is_over = False
        self._joins = limits.backoff()  # each lease and prefill, until a draft comes in time
        self._starved = limits.backoff()  # answers in a row that there was no room
        self._joining: asyncio.Task[None] | None = None

    @property
    def is_ready(self) -> bool:
        """See `ports.Drafter.is_ready`."""
        return self._is_caught_up

    @property
    def is_over(self) -> bool:
        """See `ports.Drafter.is_over`."""
        return self._is_over

    def start(self) -> None:
        """Lease a replica and prefill it in the background."""
        self._joining = asyncio.create_task(self._join(), name="draft-join")

    async def joined(self) -> None:
        """Wait until the attempt to join that is under way, if any, has ended."""
        if self._joining is not None:
            await self._joining

    async def propose(
        self, committed: TokenSequence, num_draft_tokens: int, guess: Sequence[int] = ()
    ) -> Proposal:
        """See `ports.Drafter.propose`; the same tokens take fewer steps where `guess` is right."""
        if not self._is_caught_up:
            raise Unavailable("the draft model is not ready")
        try:
            async with asyncio.timeout(self._limits.draft_s):
                deadline_s = _DEADLINE_SHARE * self._limits.draft_s
                proposal = await self._propose(
                    committed, num_draft_tokens, deadline_s, guess, self._num_branches()
                )
        except TimeoutError:
            self._rejoin(self._has_come_back)
            limit_s = self._limits.draft_s
            raise Unavailable(f"no draft within {limit_s:g} s") from None
        except ContextTooLong as error:
            self._rejoin(self._has_room)  # which finds the same, and ends it
            raise Unavailable(error.message) from error
        except ServingError as error:
            self._rejoin()
            raise Unavailable(f"draft failed: {error.message}") from error
        self._joins.reset()
        if self._starved.num_failures > 0:
            self._rejoin(self._has_room)
        return proposal

    async def close(self) -> None:
        """See `ports.Drafter.close`."""
        self._is_closed = True
        self._is_caught_up = False
        if self._joining is not None:
            self._joining.cancel()
            await asyncio.gather(self._joining, return_exceptions=True)
        await self._session.disconnect()

    def _rejoin(self, attempt: Callable[[], Awaitable[bool]] | None = None) -> None:
        self._is_caught_up = False
        if not self._is_closed and (self._joining is None or self._joining.done()):
            self._joining = asyncio.create_task(self._join(attempt), name="draft-rejoin")

    async def _join(self, attempt: Callable[[], Awaitable[bool]] | None = None) -> None:
        """Get the prefix into a replica's cache, unless it can never fit; then this is the end.

        `attempt`: first see whether the lease that is held will do; if that is False, a new one.
        """
        try:
            if attempt is None or not await attempt():
                await self._join_anew()
        except (ContextTooLong, InternalError):
            self._is_over = True
            await self._session.disconnect()
        else:
            self._is_caught_up = not self._is_closed

    async def _join_anew(self) -> None:
        """Connect and prefill until it works or the session is closed.

        The pause doubles until a draft has come in time. A draft model that is too slow for all
        must not be given all prompts anew again and again.

        Raises:
            ContextTooLong: the text is longer than the draft model can read.
            InternalError: replicas answered, and all that they said is that they cannot.
        """
        num_refusals = 0
        while not self._is_closed:
            if self._joins.num_failures > 0:
                await asyncio.sleep(self._joins.pause_s)
            self._joins.note_failure()
            try:
                await self._session.disconnect()
                self._proposed = []
                self._proposed_at = 0
                await self._catch_up()
            except ContextTooLong:
                raise
            except InternalError:
                num_refusals += 1
                if num_refusals == _MAX_REFUSALS:
                    raise
            except ServingError:
                continue
            else:
                return

    async def _has_come_back(self) -> bool:
        """Return whether the replica was only late.

        A busy replica is late for all sessions. New prefills of them all would make it later still.
        """
        try:
            async with asyncio.timeout(self._limits.draft_s):
                return await self._has_room()
        except TimeoutError:
            return False

    async def _has_room(self) -> bool:
        """Wait for room on the replica that is held; False when that will not do."""
        try:
            await self._catch_up()
        except ContextTooLong:
            raise
        except ServingError:
            return False
        return True

    async def _catch_up(self) -> None:
        """Have one token drafted, and not used: the answer says that the prefix is in the cache.

        Asks again where there was no room, after a pause; the replica has the tokens already.
        """
        while True:
            if self._starved.num_failures > 0:
                await asyncio.sleep(self._starved.pause_s)
            limit_s = self._limits.first_token_s
            proposal = await self._propose(self._committed, 1, limit_s)
            if proposal.cut == "deadline":
                raise Unavailable("the draft model did not catch up: deadline")
            if self._starved.num_failures == 0:
                return

    async def _propose(
        self,
        committed: TokenSequence,
        num_draft_tokens: int,
        deadline_s: float,
        guess: Sequence[int] = (),
        num_branches: int = 0,
    ) -> Proposal:
        await self._session.connect(self._limits.queue_wait_s)
        max_len = self._session.max_len
        if 0 < max_len <= len(committed):
            raise _outgrown(len(committed), max_len)
        self._session.agreed_len = self._agreed_len(committed)
        num_committed = len(committed)
        # The text may end with the first tokens of a chain, which are not committed yet.
        num_final = min(num_committed, len(self._committed))
        asked_after = committed.ids[num_final:]
        build = partial(
            Propose,
            num_draft_tokens=num_draft_tokens,
            deadline_ms=deadline_s * 1e3,
            guess=list(guess),
            mask_wait_ms=self._mask_wait_ms,
            ahead=num_branches,
        )
        async with aclosing(self._session.exchange(committed, build)) as replies:
            async for reply in replies:
                if not isinstance(reply, Proposal):
                    break
                self._proposed_at = num_final
                self._proposed = [*asked_after, *reply.tokens]
                if reply.cut == "context" and not reply.tokens:
                    raise _outgrown(num_committed, num_committed)
                is_starved = reply.cut == "starved" and not reply.tokens
                if is_starved:
                    self._starved.note_failure()
                else:
                    self._starved.reset()
                return reply
        raise LinkLost("draft engine answered a proposal with something else", "fault")

    def _agreed_len(self, committed: TokenSequence) -> int:
        """Committed tokens whose KV the draft model has: it wrote none for its last token."""
        num_matching = committed.num_common(self._proposed_at, self._proposed)
        return self._proposed_at + min(num_matching, max(len(self._proposed) - 1, 0))


def _outgrown(num_tokens: int, max_len: int) -> ContextTooLong:
    return ContextTooLong(
        f"the draft model has no room for a text of {num_tokens} tokens, its limit is {max_len}"
    )
