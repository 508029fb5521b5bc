"""What a drafting layer is seen to draft, by chains and by trees."""

from __future__ import annotations

import pytest

from models.engine.drafting.lengths import DraftLengths
from models.engine.drafting.mtp import MtpDrafter
from models.engine.drafting.trees import DraftTrees
from tests.cases.models import eagle3, mtp

NUM_STEPS = mtp.NUM_STEPS
assert eagle3.NUM_STEPS == NUM_STEPS


@pytest.fixture(params=[[], [(-1, 0), (-1, 1), (0, 0), (2, 0)]], ids=["chain", "tree"])
def drafts(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> list[tuple[list[int], list[int]]]:
    """Text and draft of all drafts that are made, each as long as can be."""
    monkeypatch.setattr(DraftLengths, "choose", lambda self, num_sessions: NUM_STEPS)
    made: list[tuple[list[int], list[int]]] = []
    rank = MtpDrafter.rank

    def note(self, sessions, samplings, num_tokens, num_ranks):
        texts = [list(session.tokens.ids) for session in sessions]
        ranked = rank(self, sessions, samplings, num_tokens, num_ranks)
        made.extend(zip(texts, [[ids[0] for ids in each] for each in ranked], strict=True))
        return ranked

    monkeypatch.setattr(MtpDrafter, "rank", note)
    monkeypatch.setattr(DraftTrees, "choose", lambda self, num_sessions, length: request.param)
    return made
