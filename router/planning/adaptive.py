"""Plans all sessions of a router that share a target replica, once per round of theirs.

A session asks for its k when a round of its own begins. The first that asks has a plan made for all
sessions on its replica (`joint`); the others take theirs from it when they come, and a session that
comes a second time starts the next plan. With sessions A, B and C: A asks, a plan (A 4, B 4, C 2)
is made and A drafts 4; B asks and drafts 4; A asks again, has nothing left to take, and a new plan
is made, C's part of the old one forgotten.

While drafting does not pay, the target goes on alone and nobody waits: now and then one session has
the idle drafter draft during the plain steps (a shadow draft, compared with what the target said),
and seldom one session drafts for real, which shows what rows cost. While it pays, a plain round for
all shows now and then what going without would cost.

Switching costs nothing, but a tie must not flicker: drafting begins a margin later than it ends.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from models.protocol.messages import Timing
from router.planning.acceptance import AcceptanceEstimate
from router.planning.costs import PassCosts
from router.planning.joint import DraftForecast, JointPlan, best_drafting_plan, plain_plan
from router.planning.others import OthersEstimate
from router.planning.round_plan import PLAIN_STEPS, RoundPlan
from router.ports import DrafterTraits

# Where a figure is given, it is what another value changes in simulation (`loadtest.simulate`): in
# tokens per second of 8 sessions on machines like the demo pair's, the 349M pair's and a GPU, with
# acceptance 0.5 to 0.9, in two of eight cases changing between 0.2 and 0.9. Less than 2% is noise.
_BEGIN_MARGIN = 1.04  # drafting begins where it promises so much more; 1.0 the same, 1.1 up to -3%
_END_MARGIN = 1.0
_SHADOW_LENGTH = 3  # as many positions as `acceptance` estimates one by one
_LONGEST_SHADOW_GAP = 4  # plain rounds of a session between its shadow drafts; 1 and 16 the same
_SETTLING = 3  # plans after a change of mode until sessions are in step; 0 up to -6%
_DWELL = 5  # plans that drafting is given before it may be called off; 0 up to -4%, 20 up to -5%
_TRIALS = (32, 512)  # plans between two trials of the other mode: first, at most; all 8 up to -6%
_STRETCH_EVERY = 16  # plans; then one token more than is best, or later positions stay unknown
_PATIENCE = 16  # plans that a session may miss before it counts as away; 64 the same, 4 -1 to +5%
_MAX_EMPTY_REPLICAS = 16  # replicas come and go under new names: the last ones are remembered


@dataclass(slots=True)
class PlannerStats:
    """Counters since the start, all replicas together."""

    num_plans: int = 0
    lengths: Counter[int] = field(default_factory=Counter)  # chosen k, by session and round
    predicted_ms: float = 0.0  # sums over the rounds that were measured
    actual_ms: float = 0.0


class RouterPlanner:
    """What all sessions of a router share: a planner for each target replica.

    Args:
        costs: of all sessions.
        pinned: k that every plan is overruled with, for measuring what planning costs; None: none.
    """

    def __init__(self, costs: PassCosts, pinned: int | None = None) -> None:
        self.costs = costs
        self.stats = PlannerStats()
        self._pinned = pinned
        self._replicas: dict[str, ReplicaPlanner] = {}

    def replica(self, name: str) -> ReplicaPlanner:
        """The planner of the sessions on a target replica."""
        if name not in self._replicas:
            self._replicas[name] = ReplicaPlanner(self.costs, self.stats, self._pinned)
        return self._replicas[name]

    def leave(self, session: PlannedSession, name: str) -> None:
        """Let a session go from a replica.

        A replica without sessions keeps its mode for the next one to come, for a while: else
        requests that come one by one would each find out anew whether drafting pays.
        """
        replica = self._replicas.pop(name)
        replica.leave(session)
        self._replicas[name] = replica  # the last to be forgotten, if it is empty
        empty = [name for name, other in self._replicas.items() if not other.sessions]
        for name in empty[:-_MAX_EMPTY_REPLICAS]:
            del self._replicas[name]


class PlannedSession:
    """Plans the rounds of one session together with all others on its target replica.

    Args:
        planner: of the router.
        estimates: acceptance of each drafter that may draft for the session, by name.
        replica: names the session's target replica, which may change.
        max_length: the highest k.
        run_on: plain steps per round where nobody drafts at all.
    """

    def __init__(
        self,
        planner: RouterPlanner,
        estimates: Mapping[str, AcceptanceEstimate],
        replica: Callable[[], str],
        *,
        max_length: int,
        run_on: int,
    ) -> None:
        self._planner = planner
        self._estimates = estimates
        self._replica_now = replica
        self._max_length = max_length
        self._run_on = run_on
        self._name = ""  # of the replica
        self._replica: ReplicaPlanner | None = None
        self.drafter: DrafterTraits | None = None  # of its newest plan
        self.limit = 0
        self.num_rows = 1  # in its newest pass, as far as planned
        self.runs_on = False
        self.last_plan = 0  # of the replica, when it last asked
        self.shadow_gap = 1
        self.rounds_to_shadow = 1

    def plan(self, drafter: DrafterTraits | None, max_draft_tokens: int) -> RoundPlan:
        """Plan a round that `drafter` would draft for; None: nobody would.

        Args:
            drafter: who drafts next.
            max_draft_tokens: what the round has room for; 0: no draft is to be had now.
        """
        if drafter is None:  # drafted for until now, maybe; others plan without it
            self.leave()
            return RoundPlan(0, self._run_on)
        limit = min(max_draft_tokens, self._max_length)
        if limit == 0:
            self.num_rows, self.runs_on = 1, False
            return RoundPlan(0, 1)
        replica = self._join()
        is_new = self.drafter is None or drafter.name != self.drafter.name
        self.drafter, self.limit = drafter, limit
        plan = replica.plan(self, is_new=is_new)
        self.num_rows = 1 + plan.num_draft_tokens
        self.runs_on = plan.run_on > 0 and not replica.is_drafting
        return plan

    @property
    def is_awaited(self) -> bool:
        """Whether the session goes on alone by a plan from before the others began to draft."""
        if self._replica is None or self.num_rows > 1:
            return False
        return self._replica.is_drafting and self.runs_on

    def survival(self) -> tuple[float, ...]:
        """S_1..S_limit of its next draft; empty before it has asked for a plan."""
        if self.drafter is None:
            return ()
        return tuple(self._estimates[self.drafter.name].survival(self.limit))

    def observe(self, drafter: DrafterTraits, num_drafted: int, num_accepted: int) -> None:
        """Take in the outcome of a round that had a draft."""
        self._estimates[drafter.name].observe(num_drafted, num_accepted)

    def observe_pass(self, timing: Timing) -> None:
        """Take in how many sessions and rows were in a target pass."""
        if self._replica is not None:
            self._replica.observe_pass(timing)

    def observe_steps(self, drafter: DrafterTraits, timing: Timing) -> None:
        """Take in how many sessions were in the draft steps of a round."""
        if self._replica is not None:
            self._replica.observe_steps(drafter, timing)

    def observe_shadow(self, num_drafted: int, num_matched: int) -> None:
        """Take in the outcome of a shadow draft; 0, 0: there is none."""
        if self._replica is not None:
            self._replica.end_shadow(self)
        if num_drafted == 0 or self.drafter is None:
            return
        self.observe(self.drafter, num_drafted, num_matched)
        # A draft that matched whole is news where drafting did not pay: look again soon.
        is_whole = num_matched == num_drafted
        gap = self.shadow_gap // 2 if is_whole else 2 * self.shadow_gap
        self.shadow_gap = min(max(gap, 1), _LONGEST_SHADOW_GAP)

    def observe_round(self, plan: RoundPlan, actual_ms: float) -> None:
        """Take in how long a planned round with a draft took, to its first verdict."""
        if plan.predicted_ms > 0.0:
            self._planner.stats.predicted_ms += plan.predicted_ms
            self._planner.stats.actual_ms += actual_ms

    def leave(self) -> None:
        """End its part in the plans of others. Idempotent."""
        if self._replica is not None:
            self._planner.leave(self, self._name)
            self._replica = None

    def _join(self) -> ReplicaPlanner:
        name = self._replica_now()
        if self._replica is None or name != self._name:
            self.leave()
            self._name = name
            self._replica = self._planner.replica(name)
            self._replica.sessions[self] = None
        return self._replica


class ReplicaPlanner:
    """The sessions of this router on one target replica, their mode and their newest plan."""

    def __init__(self, costs: PassCosts, stats: PlannerStats, pinned: int | None = None) -> None:
        self._costs = costs
        self._stats = stats
        self._pinned = pinned
        self.sessions: dict[PlannedSession, None] = {}  # in order
        self._waiting: dict[PlannedSession, int] = {}  # k of those that have not taken theirs yet
        self._plan = JointPlan((), 0, 0.0, 0.0)
        self.is_drafting = True
        self._num_plans = 0
        self._switched_at = 0
        self._is_plain_trial = False
        self._next_trial = 2  # what going without costs must be known early
        self._trial_gap = _TRIALS[0]
        self._shadowing: PlannedSession | None = None
        self._others = OthersEstimate()

    def plan(self, session: PlannedSession, *, is_new: bool) -> RoundPlan:
        """Give a session its part of the newest plan, or of a new one if it had its part."""
        if is_new or session not in self._waiting:
            self._make_plan(session)
        num_tokens = min(self._waiting.pop(session), session.limit)
        session.last_plan = self._num_plans
        self._stats.lengths[num_tokens] += 1
        if num_tokens > 0:
            self.end_shadow(session)  # given up, if it is under way
            session.shadow_gap = session.rounds_to_shadow = 1
            return RoundPlan(
                num_tokens,
                0,
                # A trial draft is in no plan: that is of plain rounds.
                predicted_ms=self._plan.round_ms if self.is_drafting else 0.0,
                is_typical=self._is_typical(num_tokens),
            )
        if self._is_plain_trial:
            return RoundPlan(0, 0)
        if self.is_drafting:  # others do
            return RoundPlan(0, PLAIN_STEPS[0])
        run_on = min(PLAIN_STEPS[0] * session.shadow_gap, PLAIN_STEPS[1])
        return RoundPlan(0, run_on, num_shadow_tokens=self._shadow_length(session))

    def observe_pass(self, timing: Timing) -> None:
        """Take in how many sessions and rows were in a target pass."""
        own_rows = sum(session.num_rows for session in self.sessions)
        self._others.observe_pass(timing, len(self.sessions), own_rows)
        if self.is_drafting and self._age >= _SETTLING and own_rows >= 2 * len(self.sessions):
            self._others.observe_share(timing, len(self.sessions))

    def observe_steps(self, drafter: DrafterTraits, timing: Timing) -> None:
        """Take in how many sessions were in the draft steps of a round."""
        drafting = [s.drafter for s in self.sessions if s.num_rows > 1 and s.drafter is not None]
        own = sum(1 for each in drafting if each.name == drafter.name)
        self._others.observe_steps(drafter.name, timing, own)

    def end_shadow(self, session: PlannedSession) -> None:
        """Let others have shadow drafts, if this session was the one that had."""
        if self._shadowing is session:
            self._shadowing = None

    def leave(self, session: PlannedSession) -> None:
        """Plan without this session from now on."""
        self.end_shadow(session)
        self.sessions.pop(session, None)
        self._waiting.pop(session, None)

    def _shadow_length(self, session: PlannedSession) -> int:
        """One at a time on a replica: the drafter is idle, its machine may not be."""
        session.rounds_to_shadow -= 1
        if session.rounds_to_shadow > 0 or self._shadowing is not None:
            return 0
        session.rounds_to_shadow = session.shadow_gap
        self._shadowing = session
        return min(_SHADOW_LENGTH, session.limit)

    def _make_plan(self, asker: PlannedSession) -> None:
        self._num_plans += 1
        self._stats.num_plans += 1
        asker.last_plan = self._num_plans
        members = [s for s in self.sessions if self._num_plans - s.last_plan <= _PATIENCE]
        self._is_plain_trial = False
        lengths = self._choose(members, asker)
        if self._pinned is not None:
            lengths = [min(self._pinned, session.limit) for session in members]
        self._waiting = dict(zip(members, lengths, strict=True))

    def _choose(self, members: list[PlannedSession], asker: PlannedSession) -> list[int]:
        """Choose k for each of `members`: `_plan`, or now and then what teaches more.

        Say plain decoding gives 0.100 tokens per ms and the best drafting plan 0.103, which is 3%
        more. Where nobody drafts that is below `_BEGIN_MARGIN`, and all go on alone; where they
        draft it is above `_END_MARGIN`, and they go on drafting.
        """
        drafters = {s.drafter.name: s.drafter for s in members if s.drafter is not None}
        if not all(self._costs.is_known(drafter) for drafter in drafters.values()):
            self._plan = JointPlan((), 0, 0.0, 0.0)
            return [_initial_length(session) for session in members]
        forecasts = [
            DraftForecast(s.survival(), is_free=s.drafter is not None and s.drafter.is_free)
            for s in members
        ]
        costs, others = self._costs.of_round(drafters), self._others.now(drafters)
        plain = plain_plan(len(members), costs, others, PLAIN_STEPS[-1])
        drafting = best_drafting_plan(forecasts, costs, others)
        pays = drafting is not None and self._pays(drafting, plain)
        if pays != self.is_drafting:  # what the other mode gives is known well for a while
            self.is_drafting = pays
            self._switched_at = self._num_plans
            self._trial_gap = _TRIALS[0]
            self._next_trial = self._num_plans + self._trial_gap
        self._plan = plain if drafting is None or not pays else drafting
        if self._num_plans >= self._next_trial:
            return self._trial(members, asker)
        if pays and self._num_plans % _STRETCH_EVERY == 0:
            return self._stretched(members)
        return list(self._plan.lengths)

    @property
    def _age(self) -> int:
        """Plans since the mode changed."""
        return self._num_plans - self._switched_at

    def _is_typical(self, num_tokens: int) -> bool:
        """Whether a draft of that length waits for nobody by plan, and sessions are in step."""
        is_deepest = num_tokens >= self._plan.depth
        return self.is_drafting and is_deepest and self._age >= _SETTLING

    def _pays(self, drafting: JointPlan, plain: JointPlan) -> bool:
        if not self.is_drafting:
            self._costs.age_waits()
            return drafting.tokens_per_ms > _BEGIN_MARGIN * plain.tokens_per_ms
        is_better = drafting.tokens_per_ms > _END_MARGIN * plain.tokens_per_ms
        return is_better or self._age < _DWELL

    def _trial(self, members: list[PlannedSession], asker: PlannedSession) -> list[int]:
        """The other mode, for one round: plain for all, or a draft for the session that asks."""
        self._next_trial = self._num_plans + self._trial_gap
        self._trial_gap = min(2 * self._trial_gap, _TRIALS[1])
        if self.is_drafting:
            self._is_plain_trial = True
            return [0] * len(members)
        return [min(_SHADOW_LENGTH, s.limit) if s is asker else 0 for s in members]

    def _stretched(self, members: list[PlannedSession]) -> list[int]:
        deepest = max(self._plan.lengths)
        return [
            min(k + 1, session.limit) if k == deepest else k
            for k, session in zip(self._plan.lengths, members, strict=True)
        ]


def _initial_length(session: PlannedSession) -> int:
    """Before any measurement: draft while a token is more likely to be accepted than not."""
    return max(1, sum(1 for alive in session.survival() if alive > 0.5))
