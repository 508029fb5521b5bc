"""The first half of a round: how far to draft is planned, and the draft is fetched."""

from __future__ import annotations

import time
from collections.abc import Sequence
from itertools import accumulate

import msgspec

from models.protocol.token_sequence import TokenSequence
from router.drafters.chain import LEAST_SURVIVAL, Chain, ChainTerms
from router.drafters.misses import Misses
from router.drafters.repeats.known import KNOWN
from router.drafters.rules import DraftRules
from router.drafters.side_by_side import SessionDrafters, first_with_tokens
from router.drafters.smaller import SmallerDraft
from router.planning.round_plan import RoundPlan
from router.ports import DrafterTraits
from router.rounds import Round, RoundWatch, Segment

_NO_CHAINS = ChainTerms()
# Expected gain of a free draft, tokens, for which plain steps are given up: the one under way is
# lost. Beside others the message misses the next pass, too: 8 streams of the demo ran at 0.97 of
# plain decoding twice, without that at 0.91 and 0.97.
_WORTH_A_STEP, _WORTH_A_PASS = 1.5, 1.0


class Drafting:
    """Plans the rounds of one session and has its drafters draft them.

    Args:
        drafters: of the session; it is closed with this.
        committed: prompt and generated tokens.
        watch: where it is noted what drafts cost; its planner plans.
        terms: of the chains that drafts are.
        smaller: guesses the drafts of a draft model for it; None: nobody does.
        rules: that a person has set for rounds without drafts.
    """

    def __init__(
        self,
        drafters: SessionDrafters,
        committed: TokenSequence,
        watch: RoundWatch,
        terms: ChainTerms = _NO_CHAINS,
        smaller: SmallerDraft | None = None,
        rules: DraftRules | None = None,
    ) -> None:
        self._drafters = drafters
        self._committed = committed
        self._watch = watch
        self._terms = terms
        self._smaller = smaller
        self._rules = rules or DraftRules()
        self._misses = Misses()
        self._min_survival = LEAST_SURVIVAL  # the newest plan's

    def start(self) -> None:
        """Let drafters that have to connect begin to, unless by plan nobody drafts now.

        Those of a text that goes on begin when its known part is made. Its client waits for that,
        and the drafters may share its cores.
        """
        if self._terms.known is not None or self._rules.why_off():
            return
        if self._watch.planner.wants_drafter:
            self._drafters.start()

    @property
    def is_awaited(self) -> bool:
        """True if a free draft has come up that is worth more than the plain step under way."""
        most = self._terms.max_free_tokens
        if self._rules.is_off or most == 0 or self._min_survival > 1.0:  # a round without drafts
            return False
        # After every plain token of every session, and mostly for nothing.
        text, free = self._committed, (*self._terms.front, *self._drafters.free_drafters())
        best_case = [each for named in free for each in named.drafter.best_case(text, most)][:most]
        _, num_sessions = self._watch.load
        needed = _WORTH_A_STEP + (_WORTH_A_PASS if num_sessions > 1 else 0.0)
        if sum(best_case) < needed:
            return False
        row_cost = min(self._cost_of(1), self._cost_of(most) / most)
        if sum(max(0.0, alive - row_cost) for alive in best_case) < needed:
            return False
        survival = self._free_chain(most).survival
        return sum(survival) >= needed and self._best_of(survival)[0] >= needed

    def _best_of(self, survival: Sequence[float]) -> tuple[float, int]:
        """Return the most tokens that the beginning of a free draft may gain, and its length."""
        expected = accumulate(survival, initial=0.0)
        gains = [tokens - self._cost_of(length) for length, tokens in enumerate(expected)]
        most = max(gains)
        return most, gains.index(most) if most >= 0.0 else 0  # else the target alone makes more

    def _cost_of(self, num_tokens: int) -> float:
        """Return the cost of a free draft if a message is sent anyway, in tokens of plain steps.

        It is the price of its rows and the tokens that the target drafts itself otherwise. The
        target does not do so beside another draft.
        """
        watch = self._watch
        num_beside, num_sessions = watch.load
        rows = watch.costs.rows_price(num_tokens, num_beside + 1, num_sessions)
        return rows + watch.num_own_tokens

    async def next_round(self, remaining_tokens: int) -> Round:
        """Plan a round of at most `remaining_tokens` and have it drafted.

        The target goes on alone if there is no draft. Free drafts begin and continue what the
        session's drafters draft, and stand in where by plan none of them does.
        """
        planner = self._watch.planner
        self._watch.end_round()
        if self._watch.num_accepted > 0:  # one that was wrong is as good as none
            self._misses.end()
        planned_at = time.perf_counter()
        # The round emits one token of the target's own, so a draft leaves room for it.
        room = max(0, remaining_tokens - 1)
        if (again := self._known_round(planned_at, room)) is not None:
            return again
        if off := self._rules.next_round():
            room = 0
        drafter, plan = self._plan(room, off)
        # Now: while the draft is waited for, the others' plan may become another.
        why = planner.explain() if self._watch.explains else None
        self._min_survival = plan.min_survival or LEAST_SURVIVAL
        chain = self._chain(room)
        if plan.num_draft_tokens > 0:
            await self._propose(chain, plan)
        chain.add_free(self._drafters.free_drafters(), drafter)
        is_free = all(segment.drafter.is_free for segment in chain.segments)
        is_chosen = plan.mode is not None or plan.num_draft_tokens == 0  # live, not a fixed k
        if is_free and is_chosen:
            _, length = self._best_of(chain.survival)
            if length < len(chain.tokens):
                chain = self._free_chain(length, drafter)
        if not chain.tokens and plan.num_draft_tokens > 0:
            plan = self._misses.next_plan(plan, self._watch.num_own_tokens)
        return Round(
            plan=plan,
            planned_at=planned_at,
            draft=chain.tokens,
            draft_probs=chain.draft_probs,
            segments=chain.segments,
            why=why,
        )

    def _known_round(self, planned_at: float, room: int) -> Round | None:
        """Return the round of a text that its client has already; None: it has no more of it."""
        known, (_, num_sessions) = self._terms.known, self._watch.load
        if known is None or self._rules.why_off():
            return None
        tokens = known.draft(room, num_sessions)
        if not tokens:
            return None
        _, plan = self._plan(room, "made again")
        return Round(
            plan=msgspec.structs.replace(plan, run_on=0),
            planned_at=planned_at,
            draft=tokens,
            segments=[Segment(KNOWN, len(tokens))],
            why=self._watch.planner.explain() if self._watch.explains else None,
        )

    def _plan(self, room: int, off: str) -> tuple[DrafterTraits | None, RoundPlan]:
        """Return the plan and its drafter; `off`: why nobody is to be asked for a draft, or ""."""
        planner, drafters = self._watch.planner, self._drafters
        if off:
            return None, msgspec.structs.replace(planner.plan(None, room), reason=off)
        if planner.wants_drafter:
            drafters.start()
        if planner.wants_drafter and not planner.is_probing:
            drafter, is_ready = drafters.next_drafter, drafters.is_ready
        else:  # a probe is of the preferred one: of those that fill in the rows tell enough
            drafter, is_ready = drafters.preferred, drafters.is_preferred_ready
        return drafter, planner.plan(drafter, room, is_ready=is_ready)

    def _chain(self, room: int) -> Chain:
        return Chain(self._committed, self._terms, room, self._min_survival)

    def _free_chain(self, room: int, planned: DrafterTraits | None = None) -> Chain:
        chain = self._chain(room)
        chain.add_free(self._drafters.free_drafters(), planned)
        return chain

    async def _propose(self, chain: Chain, plan: RoundPlan) -> None:
        """Have the planned tokens drafted after the chain's, as far as these leave room."""
        num_tokens = min(plan.num_draft_tokens, chain.room)
        if num_tokens == 0:
            return
        guess, guess_ms = await self._guess(chain.text, num_tokens)
        proposals = await self._drafters.propose(chain.text, num_tokens, guess)
        for named in proposals:
            self._watch.note_proposal(
                named.drafter, named.proposal, named.elapsed_ms, named.guess, guess_ms
            )
            if self._smaller is not None and named.guess and named.proposal is not None:
                self._smaller.learn(named.guess, named.proposal.tokens)
        taken = first_with_tokens(proposals)
        if taken is not None and taken.proposal is not None:
            chain.add_proposal(taken.drafter, taken.proposal)

    async def _guess(self, text: TokenSequence, num_tokens: int) -> tuple[Sequence[int], float]:
        """Return a guess of the draft after `text`, and the time that it was waited for, ms."""
        if self._smaller is None:
            return (), 0.0
        asked = await self._smaller.guess(text, num_tokens, self._drafters.next_drafter)
        if asked is None:
            return (), 0.0
        self._watch.note_guess(asked.drafter, asked.proposal, asked.elapsed_ms)
        return () if asked.proposal is None else asked.proposal.tokens, asked.elapsed_ms

    async def close(self) -> None:
        """Free the drafters. Idempotent; never raises."""
        await self._drafters.close()
        if self._smaller is not None:
            await self._smaller.close()
