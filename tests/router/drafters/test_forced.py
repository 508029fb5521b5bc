"""Forced text as a free drafter: what it gives where, and what it learns of its own tokens."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from models.protocol.forced import NOTHING_FORCED, Forced
from models.protocol.token_sequence import TokenSequence
from router.drafters.chain import ChainTerms, NamedFree
from router.drafters.forced import FORCED, FORCED_EDGE, ForcedText
from router.loop import run_session
from router.planning.acceptance import AcceptanceEstimate, AcceptancePool
from router.planning.fixed import FixedPlanner
from router.ports import DrafterTraits, FreeDraft
from router.session import Session
from tests.fakes.router import ScriptedConstrainer, ScriptedVerifier, continuation
from tests.fakes.sessions import PROMPT, scripted_session


def estimate(traits: DrafterTraits) -> AcceptanceEstimate:
    return AcceptanceEstimate(AcceptancePool(traits.prior_acceptance["structured"]))


def forced_text(num_prompt_tokens: int = len(PROMPT)) -> ForcedText:
    return ForcedText(num_prompt_tokens, estimate(FORCED), estimate(FORCED_EDGE))


def look(text: ForcedText, *new: int, num_tokens: int = 8) -> FreeDraft:
    return text.look(TokenSequence([*PROMPT, *new]), num_tokens)


def test_it_gives_what_is_forced_and_trusts_the_edge_less() -> None:
    text = forced_text()
    text.follow((), Forced([1, 2, 3, 4], 3))
    draft = look(text)
    assert list(draft.tokens) == [1, 2, 3, 4]
    assert list(draft.survival) == pytest.approx([0.99, 0.99**2, 0.99**3, 0.99**3 * 0.9])
    short = look(text, num_tokens=2)
    assert list(short.tokens) == [1, 2]
    assert list(short.survival) == pytest.approx([0.99, 0.99**2])


@pytest.mark.parametrize(
    ("new", "tokens", "survival"),
    [
        ([1], [2, 3, 4], [0.99, 0.99**2, 0.99**2 * 0.9]),
        ([1, 2, 3], [4], [0.9]),
        ([1, 2, 3, 4], [], []),
        ([1, 2, 3, 4, 5], [], []),
        ([2], [], []),
        ([1, 3], [], []),
    ],
)
def test_a_text_that_ends_within_forced_text_gets_the_rest(
    new: list[int], tokens: list[int], survival: list[float]
) -> None:
    """As the chain's text does while it grows."""
    text = forced_text()
    text.follow((), Forced([1, 2, 3, 4], 3))
    draft = look(text, *new)
    assert list(draft.tokens) == tokens
    assert list(draft.survival) == pytest.approx(survival)


def test_it_follows_the_text_and_gives_nothing_behind_it() -> None:
    text = forced_text()
    assert look(text) == FreeDraft([], [])
    text.follow((), Forced([1, 2], 2))
    text.follow((1, 2, 7), Forced([8, 9], 2))
    assert look(text, 1) == FreeDraft()  # before what is committed
    assert list(look(text, 1, 2, 7).tokens) == [8, 9]
    text.follow((8,), NOTHING_FORCED)
    assert list(look(text, 1, 2, 7, 8).tokens) == []


def survival_after(forced: Forced, tokens: tuple[int, ...], times: int) -> tuple[float, float]:
    """Survival of two settled tokens and of one at the edge, after such a fate of such tokens."""
    text = forced_text(0)
    for _ in range(times):
        text.follow((), forced)
        text.follow(tokens, NOTHING_FORCED)
    text.follow((), Forced([1, 2, 3], 2))
    _, settled, all_three = text.look(TokenSequence([0] * (times * len(tokens))), 3).survival
    return settled, all_three / settled


@pytest.mark.parametrize(
    ("tokens", "settled", "edge"),
    [
        ((1, 2, 3), "right", "right"),
        ((1, 2, 7), "right", "wrong"),
        ((1, 7, 3), "wrong", "unseen"),
        ((1, 2), "right", "unseen"),
        ((7,), "wrong", "unseen"),
    ],
)
def test_it_learns_from_the_text_alone(tokens: tuple[int, ...], settled: str, edge: str) -> None:
    """Nothing of it was drafted, and the fate of what comes after a wrong token is not known."""
    fresh = survival_after(NOTHING_FORCED, (), 0)
    for before, after, what in zip(
        fresh, survival_after(Forced([1, 2, 3], 2), tokens, 40), (settled, edge), strict=True
    ):
        if what == "right":
            assert after > before
        elif what == "wrong":
            assert after < before - 0.2
        else:
            assert after == pytest.approx(before)


# --- in the loop ------------------------------------------------------------------------------


def session(
    constrainer: ScriptedConstrainer,
    verifier: ScriptedVerifier,
    *,
    run_on: int = 0,
    max_tokens: int = 40,
) -> Session:
    """Nobody drafts but the grammar."""
    forced = forced_text()
    return scripted_session(
        FixedPlanner(0, run_on),
        terms=ChainTerms(front=(NamedFree(FORCED, forced),), max_free_tokens=8),
        verifier=verifier,
        constrainer=constrainer,
        on_forced=forced.follow,
        max_tokens=max_tokens,
    )


async def ids_of(parts: Session) -> list[int]:
    await parts.guard.open()
    return [token async for delta in run_session(parts) for token in delta.token_ids]


def forcing(num_tokens: int, *, every: int = 1, wrong_from: int = 99) -> ScriptedConstrainer:
    """A grammar that forces so many tokens, at every so-manieth place."""

    def forced(generated: Sequence[int]) -> Forced:
        if len(generated) % every:
            return NOTHING_FORCED
        tokens = continuation([*PROMPT, *generated], num_tokens)
        tokens[wrong_from:] = [token % 49 + 1 for token in tokens[wrong_from:]]
        return Forced(tokens, num_tokens)

    return ScriptedConstrainer(forced=forced)


async def test_forced_text_is_drafted_from_the_first_token_on() -> None:
    verifier = ScriptedVerifier()
    parts = session(forcing(4), verifier)
    assert await ids_of(parts) == continuation(PROMPT, 40)
    assert verifier.rounds == [(4, 0)] * 8
    snapshot = parts.watch.stats.snapshot()
    assert snapshot.num_drafted_by == {"forced": 32}
    assert snapshot.num_accepted_by == {"forced": 32}


@pytest.mark.parametrize("wrong_from", [0, 1, 3])
async def test_a_wrong_guess_changes_no_text_and_is_given_up(wrong_from: int) -> None:
    verifier = ScriptedVerifier()
    parts = session(forcing(4, wrong_from=wrong_from), verifier, max_tokens=100)
    assert await ids_of(parts) == continuation(PROMPT, 100)
    assert verifier.rounds[0] == (4, 0)
    assert verifier.rounds[-2][0] < 4  # it survives too seldom


async def test_a_target_that_goes_on_alone_is_stopped_for_forced_text() -> None:
    """At every fifth place three tokens are forced, which a pass brings at once with one more."""
    verifier = ScriptedVerifier()
    assert await ids_of(session(forcing(3, every=5), verifier, run_on=8)) == continuation(
        PROMPT, 40
    )
    assert verifier.rounds[:3] == [(3, 8), (3, 8), (3, 8)]
    assert len(verifier.rounds) == 8


async def test_a_single_forced_token_is_not_worth_a_message() -> None:
    verifier = ScriptedVerifier()
    assert await ids_of(session(forcing(1, every=5), verifier, run_on=8)) == continuation(
        PROMPT, 40
    )
    assert len(verifier.rounds) < 6
