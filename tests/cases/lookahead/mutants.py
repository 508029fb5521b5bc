"""The service's rules of acceptance, each with one thing broken on purpose."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest

from models.protocol.rewards import TextScore
from router.lookahead import acceptance, loop

Patch = pytest.MonkeyPatch
Mutant = Callable[[Patch], None]


def _put(patch: Patch, name: str, broken: Callable[..., Any]) -> None:
    patch.setattr(loop, name, broken)


def share_is_above_its_threshold(patch: Patch) -> None:
    _put(patch, "stands_enough", lambda settings, share: share > settings.accept_threshold)


def share_is_ignored(patch: Patch) -> None:
    _put(patch, "stands_enough", lambda settings, share: True)


def foreseen_end_is_not_counted(patch: Patch) -> None:
    _put(patch, "share_accepted", lambda draft, verdict: verdict.num_accepted / len(draft))


def drafts_are_cut_by_a_token(patch: Patch) -> None:
    async def judged(session: Any, stands: list[int]) -> list[int]:
        return (await whole(session, stands))[: max(len(stands) - 1, 1)]

    whole = loop.judged
    _put(patch, "judged", judged)


def nothing_is_generated_for_low_reward(patch: Patch) -> None:
    _put(patch, "kept_by_paper", lambda settings, score: "all")


def reward_is_above_its_threshold(patch: Patch) -> None:
    def kept(settings: Any, score: Any) -> str:
        return "all" if score.score > settings.reward_threshold else "nothing"

    _put(patch, "kept_by_paper", kept)


def lost_constraint_scores_nothing(patch: Patch) -> None:
    def kept(settings: Any, score: Any) -> str:
        return "all" if score.value >= settings.reward_threshold else "nothing"

    _put(patch, "kept_by_paper", kept)


def gain_is_kept_by_the_papers_rule(patch: Patch) -> None:
    async def judged(session: Any, stands: list[int]) -> list[int]:
        settings = replace(session.settings, acceptance="gain")
        before, score = await session.judge.scores([(), stands])
        keeps = acceptance.kept_by_gain(settings, before, score)
        return [] if keeps == "nothing" else stands

    _put(patch, "judged", judged)


def only_the_papers_rule(patch: Patch) -> None:
    def kept(settings: Any, before: Any, score: Any) -> str:
        return acceptance.kept_by_paper(settings, score)

    _put(patch, "kept_by_gain", kept)


def _gain(patch: Patch, changed: Callable[[str, Any, Any, Any], str]) -> None:
    """Keep what `changed` makes of the right answer, settings and both scores."""

    def kept(settings: Any, before: Any, score: Any) -> str:
        right = acceptance.kept_by_gain(settings, before, score)
        return changed(right, settings, before, score)

    _put(patch, "kept_by_gain", kept)


def loss_is_ignored(patch: Patch) -> None:
    def changed(right: str, settings: Any, before: Any, score: Any) -> str:
        can_still = TextScore(score.score, score.is_met, True)
        return acceptance.kept_by_gain(settings, before, can_still)

    _gain(patch, changed)


def nothing_is_kept_once_it_is_lost(patch: Patch) -> None:
    def changed(right: str, settings: Any, before: Any, score: Any) -> str:
        return right if before.can_be_met else "nothing"

    _gain(patch, changed)


def gain_is_never_kept(patch: Patch) -> None:
    _gain(patch, lambda right, *rest: "nothing" if right == "gain" else right)


def gain_is_kept_whole(patch: Patch) -> None:
    _gain(patch, lambda right, *rest: "all" if right == "gain" else right)


def no_gain_is_a_gain(patch: Patch) -> None:
    def changed(right: str, settings: Any, before: Any, score: Any) -> str:
        is_even = score.can_be_met and score.score == before.score
        return "gain" if right == "nothing" and is_even else right

    _gain(patch, changed)


def enough_is_cut_to_its_gain(patch: Patch) -> None:
    def changed(right: str, settings: Any, before: Any, score: Any) -> str:
        return "gain" if right == "all" and score.score > before.score else right

    _gain(patch, changed)


_OF_BOTH: Sequence[Mutant] = (
    share_is_above_its_threshold,
    share_is_ignored,
    foreseen_end_is_not_counted,
    drafts_are_cut_by_a_token,
)
MUTANTS: dict[str, Sequence[Mutant]] = {
    "paper": (
        *_OF_BOTH,
        nothing_is_generated_for_low_reward,
        reward_is_above_its_threshold,
        lost_constraint_scores_nothing,
        gain_is_kept_by_the_papers_rule,
    ),
    "gain": (
        *_OF_BOTH,
        only_the_papers_rule,
        loss_is_ignored,
        nothing_is_kept_once_it_is_lost,
        gain_is_never_kept,
        gain_is_kept_whole,
        no_gain_is_a_gain,
        enough_is_cut_to_its_gain,
    ),
}
