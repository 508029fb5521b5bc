"""One round of a session, and what is learnt from it: statistics, costs, acceptance.

The loop calls `RoundWatch` where a wait begins or ends; what is made of it, clock readings
included, is here.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from models.costs.running_mean import running_mean
from models.protocol.messages import DraftProbs, Proposal, Verdict
from models.protocol.token_sequence import num_common
from router.planning.adaptive import PlannedSession
from router.planning.costs import PassCosts
from router.planning.fixed import FixedPlanner
from router.planning.round_plan import RoundPlan
from router.ports import DraftCost, DrafterTraits
from router.stats import RoundStats
from router.types import Explanation

# Heads draft in the target's own process. Their cost is already part of its passes.
HEADS = DrafterTraits(
    name="heads",
    cost=DraftCost.FREE,
    prior_acceptance={"structured": 0.6, "free": 0.5, "creative": 0.4},
)
_OWN_SHARE = 0.2  # weight of the newest step in the running mean of what the target drafts itself
_LEAST_CONTROL = 4  # steps of a control round: two verdicts may come at one moment
SessionPlanner = FixedPlanner | PlannedSession


@dataclass(frozen=True, slots=True)
class Segment:
    """The tokens of one drafter in a draft. `is_planned`: k was chosen for them.

    The first `num_ahead` were drafted before they were asked for.
    """

    drafter: DrafterTraits
    num_tokens: int
    is_planned: bool = False
    num_ahead: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Round:
    """The target's task in one round. `draft_probs` are those of exactly this draft.

    `why` explains the plan, where the request asks for it.
    """

    plan: RoundPlan
    planned_at: float
    draft: Sequence[int] = ()
    draft_probs: DraftProbs | None = None
    segments: Sequence[Segment] = ()  # segments of the draft, in order
    why: Explanation | None = None


class RoundWatch:
    """Measures the rounds of one session and reports them to statistics, costs and planner.

    Args:
        stats: counts for the client.
        costs: of all sessions of the router.
        planner: of the session.
        replica: the target replica that the session is on, by name; "" for none.

    Attributes:
        explains: whether each round is to say why its plan is what it is.
        num_own_tokens: accepted of drafts of the target's own in a step without another, lately.
        num_accepted: of the draft of the round under way, as far as it is known.
        load: rows of others in the newest pass, and its sessions.
    """

    def __init__(
        self,
        stats: RoundStats,
        costs: PassCosts,
        planner: SessionPlanner,
        replica: Callable[[], str] = lambda: "",
    ) -> None:
        self.stats = stats
        self.costs = costs
        self.planner = planner
        self.explains = False
        self.num_own_tokens = 0.0
        self.num_accepted = 0
        self.load = (0, 1)
        self._since = 0.0  # when the loop began to wait
        self._has_verdict = False
        self._is_prefill = True  # the target reads the prompt, before the round's first verdict
        self._began_s = 0.0  # when it had, and plain steps followed; 0.0: it has not
        self._asked: Round | None = None  # the round that the target answered, once it has
        self._num_tokens = 0  # that the round brought so far
        self._emit_ms = 0.0  # that the round waited for the client
        self._replica = replica
        self._asked_of = ""

    def note_proposal(
        self,
        drafter: DrafterTraits,
        proposal: Proposal | None,
        elapsed_ms: float,
        guess: Sequence[int] = (),
        guess_ms: float = 0.0,
    ) -> None:
        """Note that a drafter answered, or was lost (None), after `elapsed_ms`.

        It was sent `guess`, which was waited for `guess_ms` before.
        """
        is_remote = drafter.cost is DraftCost.REMOTE and proposal is not None
        self.stats.add_draft(elapsed_ms, proposal.timing if proposal and is_remote else None)
        if proposal is None:
            self.costs.observe_late(drafter, elapsed_ms)
            return
        num_right = num_common(guess, proposal.tokens)
        if guess:
            self.stats.add_guess(len(guess), num_right)
        is_ahead = self.planner.is_ahead
        self.costs.observe_draft(
            drafter, proposal, len(guess), num_right, guess_ms, is_ahead=is_ahead
        )
        if is_remote and self.planner.num_branches == 0:  # else the others' drafts are there
            self.planner.observe_steps(drafter, proposal.timing)

    def note_guess(
        self, drafter: DrafterTraits, proposal: Proposal | None, elapsed_ms: float
    ) -> None:
        """Note that a smaller draft model gave a guess, or was lost (None), after `elapsed_ms`."""
        self.stats.add_draft(elapsed_ms, None if proposal is None else proposal.timing)
        if proposal is not None:
            self.costs.observe_draft(drafter, proposal)

    def note_asked(self) -> None:
        """Note that the target is asked for a round's verdicts."""
        self._is_prefill, self._began_s = not self._has_verdict, 0.0
        self._asked_of = self._replica()
        self.num_accepted = 0
        self._since = time.perf_counter()

    def note_verdict(self, asked: Round, verdict: Verdict) -> None:
        """Note that a verdict of the round came.

        The first one decides on the draft.
        """
        self.stats.add_verdict(self._since, verdict.timing)
        self._since = time.perf_counter()  # the next one may be there already
        self._asked = asked
        self._num_tokens += 1 + verdict.num_accepted + len(verdict.own)
        if verdict.num_own_drafted:
            own = [(HEADS.name, verdict.num_own_drafted)]
            self.stats.add_acceptance(own, len(verdict.own))
        if verdict.part > 0 or not asked.draft:
            newest = float(len(verdict.own))
            self.num_own_tokens = running_mean(self.num_own_tokens, newest, _OWN_SHARE)
        if not self._has_verdict:
            self._has_verdict = True
            self.stats.num_cached_tokens = verdict.num_cached_tokens
        # A pass that reads a prompt says little of those that follow, and so does one of another
        # replica that was looked for, which has to read all there is.
        if self._is_prefill or self._replica() != self._asked_of:
            self._is_prefill, self._asked_of = False, self._replica()
            self._measure_from_here()
        else:
            self._observe_pass(asked, verdict)
            # The first step of a control round may have waited for the drafts of others.
            is_first = verdict.part == 0 and asked.plan.run_on > 0
            if asked.plan.is_control and (is_first or self.planner.is_gathering):
                self._measure_from_here()
        if verdict.part == 0 and asked.draft:
            self._observe_draft(asked, verdict)

    def note_emitting(self) -> None:
        """Text goes to the client, which may be slow."""
        self._since = time.perf_counter()

    def note_emitted(self) -> None:
        """Note that the client has it, and that the next verdict is waited for."""
        self.stats.add_emit(self._since)
        now = time.perf_counter()
        self._emit_ms += (now - self._since) * 1e3
        self._since = now

    def end_round(self) -> None:
        """End the round and observe its result.

        The next round is to be planned, or there is none.
        """
        asked, self._asked = self._asked, None
        # Behind a prompt the plain steps are a round; the verdict on a draft came with the prompt.
        is_whole = asked is not None and not (self._began_s and asked.draft)
        least = 1
        if asked is not None and asked.plan.is_control:
            least = max(1, min(asked.plan.run_on, _LEAST_CONTROL))
        if asked is not None and is_whole and self._num_tokens >= least:
            began_s = self._began_s or asked.planned_at
            elapsed_ms = (time.perf_counter() - began_s) * 1e3 - self._emit_ms
            self.planner.observe_round(asked.plan, self._num_tokens, elapsed_ms)
        self._num_tokens, self._emit_ms = 0, 0.0

    def _measure_from_here(self) -> None:
        """Let the tokens and the time of the round count from its next verdict on."""
        self._began_s, self._num_tokens, self._emit_ms = time.perf_counter(), 0, 0.0

    def _observe_pass(self, asked: Round, verdict: Verdict) -> None:
        timing = verdict.timing
        num_drafted = verdict.num_own_drafted + (0 if verdict.part else len(asked.draft))
        self.load = (max(0, timing.num_rows - 1 - num_drafted), max(1, timing.num_sessions))
        is_news = self.costs.observe_pass(timing.num_rows, timing.pass_ms)
        if is_news and verdict.part == 0:  # one of each round says who else is there
            self.planner.observe_pass(timing)

    def _observe_draft(self, asked: Round, verdict: Verdict) -> None:
        num_accepted, draft = verdict.num_accepted, asked.draft
        self.num_accepted = num_accepted
        self.stats.add_acceptance(
            [(segment.drafter.name, segment.num_tokens) for segment in asked.segments],
            num_accepted,
            sum(segment.num_ahead for segment in asked.segments),
        )
        # A drafted eos that the target samples too comes back as its token: it was right as well.
        is_eos_right = num_accepted < len(draft) and draft[num_accepted] == verdict.token
        num_right = num_accepted + is_eos_right
        for segment in asked.segments:
            if segment.is_planned:
                self.planner.observe(
                    segment.drafter, segment.num_tokens, min(num_right, segment.num_tokens)
                )
            num_right -= segment.num_tokens
            if num_right < 0:  # the target looked at no segment behind this one
                return
