"""CDSL by the rule of this project's own, `acceptance: gain`: one text, no engine.

A draft of which a_t stands is kept as far as this table says, s the reward's score of the text with
it, s0 the score without it. Where nothing is kept the target generates, as in the paper.

    | the constraint is...       | s >= r_t | s0 < s < r_t | else    |
    | still to be met with it    | all      | its gain     | nothing |
    | lost by it                 | nothing  | nothing      | nothing |
    | lost before it             | all      | all          | all     |

The gain of a draft is all of it, unless `commit` is `gain`: then its shortest beginning that scores
what all of it does.
"""

from __future__ import annotations

from tests.cases.lookahead.commits import committed
from tests.cases.lookahead.texts import Texts


class GainReference(Texts):
    """What the service must decide with `acceptance: gain`."""

    def next(self) -> list[int]:
        settings = self.settings
        if settings.method == "cdlh":
            self.states["lookahead"] += 1
            return self._best_future()
        draft = self.drafted()
        verified = self.verified(draft)
        num_right = next(
            (place for place, token in enumerate(draft) if verified[place] != token), len(draft)
        )
        if num_right < settings.accept_threshold * len(draft):
            self.states["low_acceptance"] += 1
        elif kept := self._kept(verified[: self.left]):
            self.states["accepted"] += 1
            return kept
        else:
            self.states["low_reward"] += 1
        return verified[:1] if settings.generation == "plain" else self._best_future()

    def _kept(self, draft: list[int]) -> list[int]:
        without, with_it = self.scored([]), self.scored(draft)
        if not without.can_be_met:
            return draft
        if not with_it.can_be_met:
            return []
        if with_it.score >= self.settings.reward_threshold:
            return draft
        if with_it.score <= without.score:
            return []
        if self.settings.commit != "gain":
            return draft
        length = 1
        while self._worth(draft[:length]) < with_it.score:
            length += 1
        return draft[:length]

    def _best_future(self) -> list[int]:
        candidates = self.candidates()
        if len(candidates) == 1 < self.settings.candidates:  # a grammar allows no other
            return [candidates[0][0]]
        best, most = [-1], float("-inf")
        for token, logprob in candidates:
            future = self.future(token)
            worth = logprob + self.settings.reward_weight * self._worth(future)
            if worth > most:
                best, most = future, worth
        return committed(self.settings.commit, best, self._worth)

    def _worth(self, future: list[int]) -> float:
        scored = self.scored(future)
        return scored.score if scored.can_be_met else 0.0
