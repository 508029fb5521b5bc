"""A drafter added as any other: it knows the scripted language, but not every third token."""

from __future__ import annotations

from models.protocol.messages import Proposal, Timing
from models.protocol.token_sequence import TokenSequence
from router.drafters.kind import DrafterContext, DrafterKind
from router.ports import DraftCost, DrafterTraits
from tests.fakes.router import continuation


class OracleDrafter:
    is_ready = True
    is_over = False

    def __init__(self, context: DrafterContext) -> None:
        self._session_id = context.session_id

    async def propose(self, committed: TokenSequence, num_draft_tokens: int) -> Proposal:
        tokens = continuation(committed.ids, num_draft_tokens)
        tokens[2::3] = [1 + token % 40 for token in tokens[2::3]]
        timing = Timing(pass_ms=0.5, num_sessions=1)
        return Proposal(
            session_id=self._session_id, seq=0, tokens=tokens, timing=timing, step_ms=0.1
        )

    async def close(self) -> None: ...


ORACLE = DrafterKind(
    traits=DrafterTraits(
        name="oracle",
        cost=DraftCost.LOCAL,
        prior_acceptance={"structured": 0.6, "free": 0.6, "creative": 0.6},
    ),
    label="the oracle",
    make=OracleDrafter,
)
