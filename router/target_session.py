"""The `Verifier` over the protocol: verifies on a leased target replica and replaces a lost one."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence

from models.errors import LinkLost, MaskUnavailable, Unavailable
from models.messages import DraftProbs, Verdict, Verify
from models.token_log import TokenLog
from router.engine_session import EngineLimits, EngineSession, Header


class TargetSession:
    """Implements `ports.Verifier`. A lost target costs a pause: lease, open and prefix again."""

    def __init__(self, session: EngineSession, limits: EngineLimits) -> None:
        self._session = session
        self._limits = limits

    async def connect(self) -> None:
        """Lease a replica ahead of the first verify, to do it beside other work."""
        await self._session.connect()

    async def verify(
        self,
        committed: TokenLog,
        draft: Sequence[int],
        run_on: int,
        draft_probs: DraftProbs | None = None,
    ) -> AsyncGenerator[Verdict, None]:
        """See `ports.Verifier.verify`."""
        num_attempts = 0
        while True:
            num_yielded = 0
            try:
                async for verdict in self._verify_once(committed, draft, run_on, draft_probs):
                    num_yielded += 1
                    yield verdict
                return
            except MaskUnavailable:
                raise
            except (LinkLost, Unavailable) as error:
                await self._session.disconnect()
                if num_yielded > 0:
                    return
                num_attempts += 1
                if num_attempts >= self._limits.max_attempts:
                    raise Unavailable(
                        f"target lost {num_attempts} times in a row: {error.message}"
                    ) from error
                await asyncio.sleep(self._limits.rejoin_interval_s * (num_attempts - 1))

    async def _verify_once(
        self,
        committed: TokenLog,
        draft: Sequence[int],
        run_on: int,
        draft_probs: DraftProbs | None,
    ) -> AsyncGenerator[Verdict, None]:
        num_committed = len(committed)

        def build(header: Header) -> Verify:
            return Verify(
                session_id=header.session_id,
                epoch=header.epoch,
                seq=header.seq,
                base_len=header.base_len,
                prefix_hash=header.prefix_hash,
                tokens=header.tokens,
                draft=list(draft),
                run_on=run_on,
                draft_probs=draft_probs,
            )

        async for reply in self._session.exchange(committed, build):
            if not isinstance(reply, Verdict):
                raise LinkLost(f"target answered a verify with {type(reply).__name__}")
            if reply.part == 0:
                num_committed += reply.num_accepted
            # The cache now holds all committed tokens but the newest, whose KV the next row writes.
            self._session.agreed_len = num_committed + reply.part
            yield reply

    async def close(self) -> None:
        """See `ports.Verifier.close`."""
        await self._session.disconnect()
