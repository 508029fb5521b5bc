"""Tokens that the client has: how long their drafts are, and when the client is not believed."""

from __future__ import annotations

from models.protocol.token_sequence import TokenSequence
from router.drafters.repeats.known import KnownTokens

IDS = tuple(range(90))


def test_drafts_go_on_up_to_what_the_client_has() -> None:
    generated = TokenSequence()
    known, drafts = KnownTokens(generated, IDS), []
    while draft := known.draft(1000, 1):
        drafts.append(draft)
        generated.extend([*draft, len(generated) + len(draft)])  # and the target's own
    assert drafts == [IDS[:32], IDS[33:65], IDS[66:]]


def test_a_draft_leaves_room_and_shares_a_pass() -> None:
    for room, num_sessions, length in ((0, 1, 0), (5, 1, 5), (99, 8, 32), (99, 64, 4), (9, 999, 1)):
        assert len(KnownTokens(TokenSequence(), IDS).draft(room, num_sessions)) == length


def test_a_round_that_came_to_nothing_is_drafted_again() -> None:
    known = KnownTokens(TokenSequence(), IDS)
    assert known.draft(50, 1) == known.draft(50, 1) == IDS[:32]


def test_a_text_that_goes_another_way_has_no_drafts() -> None:
    generated = TokenSequence()
    known = KnownTokens(generated, IDS)
    assert known.draft(50, 1)
    generated.extend([*IDS[:10], 555])
    assert known.draft(50, 1) == ()
    generated.extend(IDS[11:20])
    assert known.draft(50, 1) == ()
