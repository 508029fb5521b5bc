"""Text that the client has: how long its drafts are, and when the client is not believed."""

from __future__ import annotations

from collections.abc import Sequence

from models.protocol.token_sequence import TokenSequence
from router.drafters.repeats.known import KnownText
from router.types import KnownAnswer

TEXT = list(range(100))


def tokens_after(token_ids: Sequence[int], most: int) -> Sequence[int]:
    is_beginning = list(token_ids) == TEXT[: len(token_ids)]
    return TEXT[len(token_ids) : len(token_ids) + most] if is_beginning else ()


def known_text(generated: TokenSequence, num_tokens: int = 90) -> KnownText:
    return KnownText(generated, KnownAnswer(num_tokens, tokens_after))


def test_drafts_go_on_up_to_what_the_client_has() -> None:
    generated = TokenSequence()
    known, drafts, num_accepted = known_text(generated), [], 0
    while draft := known.draft(1000, num_accepted, 1):
        drafts.append(list(draft))
        generated.extend([*draft, TEXT[len(generated) + len(draft)]])  # and the target's own
        num_accepted = len(draft)
    assert drafts == [TEXT[:32], TEXT[33:65], TEXT[66:90]]


def test_a_draft_leaves_room_and_shares_a_pass() -> None:
    for room, num_sessions, length in ((5, 1, 5), (99, 8, 32), (99, 64, 4), (99, 1000, 1)):
        assert len(known_text(TokenSequence()).draft(room, 0, num_sessions)) == length


def test_a_text_that_goes_another_way_has_no_drafts() -> None:
    generated = TokenSequence([*TEXT[:10], 555])
    assert known_text(generated).draft(50, 0, 1) == ()


def test_a_client_that_knows_nothing_is_soon_not_believed() -> None:
    known = known_text(TokenSequence())
    drafts = [known.draft(50, 0, 1) for _ in range(6)]
    assert [len(draft) for draft in drafts] == [32, 32, 32, 0, 0, 0]


def test_a_client_is_believed_that_is_right_now_and_then() -> None:
    known = known_text(TokenSequence())
    assert all(known.draft(50, 8, 1) for _ in range(50))
