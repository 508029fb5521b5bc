from __future__ import annotations

import msgspec
import pytest

from models.protocol.errors import MaskUnavailable
from models.protocol.messages import Cut, Proposal
from models.protocol.token_sequence import TokenSequence
from router.lookahead.drafter import PatientDrafter
from tests.fakes.router import ScriptedDrafter


class Cutting(ScriptedDrafter):
    """A draft model whose drafts are two tokens, for a reason."""

    def __init__(self, cut: Cut) -> None:
        super().__init__([None])
        self._cut = cut

    async def propose(self, committed: TokenSequence, num_draft_tokens: int) -> Proposal:
        proposal = await super().propose(committed, num_draft_tokens)
        return msgspec.structs.replace(proposal, tokens=proposal.tokens[:2], cut=self._cut)


class Starved(Cutting):
    """Has room again after one draft."""

    async def propose(self, committed: TokenSequence, num_draft_tokens: int) -> Proposal:
        proposal = await super().propose(committed, num_draft_tokens)
        if self._cut == "starved":
            self._cut = ""
            return proposal
        return msgspec.structs.replace(proposal, tokens=[1] * num_draft_tokens)


@pytest.mark.parametrize("cut", ["mask_late", "mask_missing"])
async def test_a_draft_that_lost_masks_cut_is_no_draft_but_a_loss(cut: Cut) -> None:
    drafter = PatientDrafter(Cutting(cut), wait_s=1.0)  # type: ignore[arg-type]
    with pytest.raises(MaskUnavailable, match="draft model's masks"):
        await drafter.draft(TokenSequence([5, 9]), 4)
    assert drafter.num_steps == 0


async def test_a_draft_that_others_left_no_room_for_is_asked_for_again() -> None:
    drafter = PatientDrafter(Starved("starved"), wait_s=1.0)  # type: ignore[arg-type]
    proposal = await drafter.draft(TokenSequence([5, 9]), 4)
    assert proposal is not None
    assert len(proposal.tokens) == 4
    drafter = PatientDrafter(Cutting("starved"), wait_s=1.0)  # type: ignore[arg-type]
    assert await drafter.draft(TokenSequence([5, 9]), 4) is None


@pytest.mark.parametrize("cut", ["", "eos"])
async def test_other_drafts_are_taken_as_they_are(cut: Cut) -> None:
    drafter = PatientDrafter(Cutting(cut), wait_s=1.0)  # type: ignore[arg-type]
    proposal = await drafter.draft(TokenSequence([5, 9]), 4)
    assert proposal is not None
    assert len(proposal.tokens) == drafter.num_steps == 2
