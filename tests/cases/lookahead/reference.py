"""CDLH and CDSL as their papers have them (2112.08726, 2412.10418): one text, no engine.

    CDSL, until the text is whole:
        draft      d tokens of M_q
        stands  <- what M_p accepts of them in one pass, and its next token
        a       <- share of the draft that is accepted
        r       <- R(text + stands)
        if a >= a_t and r >= r_t: text <- text + stands
        if a <  a_t:              M_p generates
        if a >= a_t and r <  r_t: M_p generates

    CDLH, a step; so M_p generates too, unless it is asked for its plain next token:
        for each of the k likeliest next tokens: roll out d tokens of M_p
        text <- text + the candidate with the most log p + weight x R(text + candidate + roll-out)

R is the task's reward. In CDLH's heuristic a future in which the constraint is lost is worth 0. A
paper's step commits a token; the two other values of `commit`, which are this project's, are in
`commits.py`.
"""

from __future__ import annotations

from tests.cases.lookahead.commits import committed
from tests.cases.lookahead.texts import Texts


class PaperReference(Texts):
    """What the service must decide with `acceptance: paper`, and with `method: cdlh`."""

    def next(self) -> list[int]:
        if self.settings.method == "cdlh":
            self.states["lookahead"] += 1
            return self.step_of_cdlh()
        draft = self.drafted()
        verified = self.verified(draft)
        stands = verified[: self.left]
        a = sum(one == own for one, own in zip(draft, verified, strict=False)) / len(draft)
        r = self.scored(stands).score
        if a >= self.settings.accept_threshold and r >= self.settings.reward_threshold:
            self.states["accepted"] += 1
            return stands
        if a < self.settings.accept_threshold:
            self.states["low_acceptance"] += 1
        else:
            self.states["low_reward"] += 1
        return stands[:1] if self.settings.generation == "plain" else self.step_of_cdlh()

    def step_of_cdlh(self) -> list[int]:
        candidates = self.candidates()
        if len(candidates) == 1 < self.settings.candidates:  # a grammar allows no other
            return [candidates[0][0]]
        futures = [self.future(token) for token, _ in candidates]
        worth = [
            logprob + self.settings.reward_weight * self.heuristic(future)
            for (_, logprob), future in zip(candidates, futures, strict=True)
        ]
        best = max(range(len(futures)), key=lambda place: worth[place])  # of equals the likeliest
        return committed(self.settings.commit, futures[best], self.heuristic)

    def heuristic(self, future: list[int]) -> float:
        scored = self.scored(future)
        return scored.score if scored.can_be_met else 0.0
