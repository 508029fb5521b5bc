"""A target over the protocol: verifies and weighs on a leased replica and replaces a lost one."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from functools import partial
from typing import Any, TypeVar

from msgspec.structs import replace

from models.protocol.errors import LinkLost, Unavailable
from models.protocol.messages import Choose, Chosen, DraftProbs, Proposal, Verdict, Verify
from models.protocol.token_sequence import TokenSequence
from router.limits import SessionLimits
from router.remote.engine import EngineClient
from router.remote.recovery import Recovery

_Answer = TypeVar("_Answer", Verdict, Chosen)


class RemoteVerifier:
    """Implements `ports.Verifier`.

    A lost target costs a pause: lease, open and prefix again. A target that has heads may draft by
    them as far as `own_length` says. It gives the number of tokens of each draft: 0 for as many as
    pay, None for no draft. If `inspects` is set, verdicts say how the target tested each draft
    token.
    """

    def __init__(
        self,
        session: EngineClient,
        limits: SessionLimits,
        *,
        own_length: Callable[[], int | None] = lambda: None,
        inspects: bool = False,
    ) -> None:
        self._session = session
        self._inspects = inspects
        self._own_length = own_length
        self._answered_s: float | None = None  # when the last verdict came
        self._waited_ms = 0.0  # for a place, since then
        self._recovery = Recovery("target", limits, session.losses)

    async def verify(
        self,
        committed: TokenSequence,
        draft: Sequence[int],
        run_on: int,
        draft_probs: DraftProbs | None = None,
    ) -> AsyncGenerator[Verdict, None]:
        """See `ports.Verifier.verify`."""
        own_length = self._own_length()

        def build(**header: Any) -> Verify:
            return Verify(
                **header,
                draft=list(draft),
                run_on=run_on,
                draft_probs=draft_probs,
                own_drafts=own_length is not None,
                own_length=own_length or 0,
                inspects=self._inspects,
                away_ms=0.0 if self._answered_s is None else (_now_s() - self._answered_s) * 1e3,
            )

        while True:
            await self._connect()
            num_yielded, num_committed = 0, len(committed)
            try:
                async with aclosing(self._session.exchange(committed, build)) as replies:
                    async for reply in replies:
                        verdict = self._answered(reply, Verdict)
                        # Its cache has all but the newest token: the next row writes that one's KV.
                        num_committed += verdict.num_accepted + len(verdict.own)
                        self._session.agreed_len = num_committed + verdict.part
                        num_yielded += 1
                        yield verdict
                return
            except LinkLost as error:
                await self._session.disconnect()
                if num_yielded > 0:
                    self._recovery.note_loss(error)
                    return
                await self._recovery.after(error)

    async def choose(self, committed: TokenSequence, choices: Sequence[Sequence[int]]) -> Chosen:
        """Draw one of the choices to follow the committed tokens. Safe to repeat.

        Raises:
            Unavailable: the target is lost and no other was to be had in time.
        """
        build = partial(Choose, choices=[list(choice) for choice in choices])
        while True:
            await self._connect()
            try:
                async with aclosing(self._session.exchange(committed, build)) as replies:
                    return self._answered(await anext(replies), Chosen)
            except LinkLost as error:
                await self._session.disconnect()
                await self._recovery.after(error)

    @property
    def has_more(self) -> bool:
        """See `ports.Verifier.has_more`."""
        return self._session.has_verdict

    @property
    def replica(self) -> str:
        """The session's replica, by its link's address and epoch; "" for none."""
        return self._session.replica

    async def _connect(self) -> None:
        while not self._session.is_connected:
            began_s = _now_s()
            self._recovery.check_losses()
            try:
                await self._session.connect(self._recovery.lease_timeout_s())
            except Unavailable as error:
                await self._recovery.after(error)
            self._waited_ms += (_now_s() - began_s) * 1e3
        self._recovery.note_running()

    def _answered(self, reply: Proposal | Verdict | Chosen, wanted: type[_Answer]) -> _Answer:
        """Note the wanted answer; the wait for a place before it is time in a queue."""
        if not isinstance(reply, wanted):
            raise LinkLost(f"target answered with {type(reply).__name__}", "fault")
        self._recovery.note_answer()
        self._answered_s = _now_s()
        if self._waited_ms:
            timing = replace(reply.timing, queue_ms=reply.timing.queue_ms + self._waited_ms)
            reply, self._waited_ms = replace(reply, timing=timing), 0.0
        return reply

    async def close(self) -> None:
        """See `ports.Verifier.close`."""
        await self._session.disconnect()


def _now_s() -> float:
    return asyncio.get_running_loop().time()
