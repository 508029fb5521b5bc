"""Drafts what the grammar forces: the newest answer of the constraint service, no model, no step.

The service cuts forced text canonically (`models.grammar.forced`); the target may cut it otherwise.
Its acceptance is learnt from the text alone, whether the tokens were drafted or not. It is kept
apart for tokens at the edge of forced text, which may merge with the text after it.
"""

from __future__ import annotations

from collections.abc import Sequence

from models.protocol.forced import NOTHING_FORCED, Forced
from models.protocol.token_sequence import TokenSequence, num_common
from router.planning.acceptance import AcceptanceEstimate
from router.ports import DraftCost, DrafterTraits, FreeDraft

# Answers of the demo pair and of SmolLM2 had 1,200 settled tokens, all right, and 160 at the edge,
# nine of ten right. Text is as forced within a grammar that lets free text come first.
FORCED = DrafterTraits(
    name="forced",
    cost=DraftCost.FREE,
    prior_acceptance={"structured": 0.99, "free": 0.99, "creative": 0.99},
)
FORCED_EDGE = DrafterTraits(
    name="forced edge",
    cost=DraftCost.FREE,
    prior_acceptance={"structured": 0.9, "free": 0.9, "creative": 0.9},
)


class ForcedText:
    """Implements `ports.FreeDrafter` for the text of one session.

    Args:
        num_prompt_tokens: tokens of the text before the grammar begins.
        settled, edge: how much of the two kinds of tokens is right.
    """

    def __init__(
        self, num_prompt_tokens: int, settled: AcceptanceEstimate, edge: AcceptanceEstimate
    ) -> None:
        self._position = num_prompt_tokens  # position of the first forced token in the text
        self._forced = NOTHING_FORCED
        self._settled = settled
        self._edge = edge

    def follow(self, tokens: Sequence[int], forced: Forced) -> None:
        """Note that the text goes on with `tokens`, after which `forced` is forced."""
        self._learn(tokens)
        self._position += len(tokens)
        self._forced = forced

    def look(self, text: TokenSequence, num_tokens: int) -> FreeDraft:
        """See `ports.FreeDrafter.look`. No tokens where `text` does not end within forced text."""
        tokens, num_settled = self._forced.tokens, self._forced.num_settled
        num_past = len(text) - self._position
        if num_past < 0 or tokens[:num_past] != text.ids[self._position :]:
            return FreeDraft()
        rest = tokens[num_past : num_past + num_tokens]
        num_settled = min(max(0, num_settled - num_past), len(rest))
        survival = list(self._settled.survival(num_settled))
        alive = survival[-1] if survival else 1.0
        survival += [alive * each for each in self._edge.survival(len(rest) - num_settled)]
        return FreeDraft(rest, survival)

    def best_case(self, text: TokenSequence, num_tokens: int) -> Sequence[float]:
        """See `ports.FreeDrafter.best_case`; other text may go on behind what is forced."""
        is_left = len(self._forced.tokens) > max(0, len(text) - self._position)
        return [1.0] * num_tokens if is_left else []

    def _learn(self, tokens: Sequence[int]) -> None:
        """Compare what was forced with what the text has; its end may be open yet."""
        num_seen = min(len(self._forced.tokens), len(tokens))
        num_right = num_common(self._forced.tokens, tokens)
        num_settled = self._forced.num_settled
        self._settled.observe(min(num_settled, num_seen), min(num_settled, num_right))
        if num_right >= num_settled:
            self._edge.observe(max(0, num_seen - num_settled), num_right - num_settled)
