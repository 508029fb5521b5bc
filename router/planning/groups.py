"""Plans all sessions of a router that share a target replica, once per round of theirs.

A session asks for its k when a round of its own begins. The first that asks has a plan made for all
of its group (`planner`); the others take theirs from it when they come, and whoever comes a second
time starts the next plan. While drafting does not pay, the target goes on alone and nobody waits:
now and then one session has the idle draft model draft beside the plain steps (a shadow draft,
compared with what the target said), and seldom one session drafts for real, which shows what rows
cost. While it pays, a plain round for all shows now and then what going without would cost.

Switching costs nothing, but a tie must not flicker: drafting begins a margin later than it ends.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from models.protocol.messages import DraftSource, Timing
from router.planning.acceptance import AcceptanceEstimate
from router.planning.costs import PassCosts
from router.planning.joint import DraftForecast, JointPlan, Others, best_drafting_plan, plain_plan
from router.planning.round_plan import RoundPlan

PLAIN_STEPS = (8, 32)  # how far the target goes on alone when k = 0 was chosen: first, at most
_BEGIN_MARGIN = 1.04  # drafting begins where it promises this much more than plain decoding
_END_MARGIN = 1.0
_SHADOW_LENGTH = 3
_LONGEST_SHADOW_GAP = 4  # plain rounds of a session between its shadow drafts
_SETTLING = 3  # plans after a change of mode until sessions are in step
_DWELL = 5  # plans that drafting is given before it may be called off
_TRIALS = (32, 512)  # plans between two trials of the other mode: first, at most
_STRETCH_EVERY = 16  # plans; then one token more than is best, or later positions stay unknown
_PATIENCE = 16  # plans that a session may miss before it counts as away
_SMOOTHING = 0.05
_MAX_EMPTY_GROUPS = 16  # replicas come and go under new names: the last ones are remembered


@dataclass(slots=True)
class PlannerStats:
    """Counters since the start, all groups together."""

    num_plans: int = 0
    lengths: Counter[int] = field(default_factory=Counter)  # chosen k, by session and round
    predicted_ms: float = 0.0  # sums over the rounds that were measured
    actual_ms: float = 0.0


class RouterPlanner:
    """What all sessions of a router share: their groups, one for each target replica."""

    def __init__(self, costs: PassCosts) -> None:
        self.costs = costs
        self.stats = PlannerStats()
        self._groups: dict[str, _Group] = {}

    def seat(self, replica: Callable[[], str]) -> Seat:
        """A place for a session whose target replica is `replica()`, which may change."""
        return Seat(self, replica)

    def group(self, replica: str) -> _Group:
        """The group of a target replica."""
        if replica not in self._groups:
            self._groups[replica] = _Group(self.costs, self.stats)
        return self._groups[replica]

    def leave(self, seat: Seat, replica: str) -> None:
        """A member goes. A group without any keeps its mode for the next one to come, for a while.

        Else requests that come one by one would each find out anew whether drafting pays.
        """
        group = self._groups.pop(replica)
        group.leave(seat)
        self._groups[replica] = group  # the last to go, if it is empty
        empty = [name for name, other in self._groups.items() if not other.seats]
        for name in empty[:-_MAX_EMPTY_GROUPS]:
            del self._groups[name]


class Seat:
    """One session's part in the plans of its group."""

    def __init__(self, planner: RouterPlanner, replica: Callable[[], str]) -> None:
        self._planner = planner
        self._replica_now = replica
        self._replica: str | None = None
        self.estimate: AcceptanceEstimate | None = None
        self.source: DraftSource = "draft_model"
        self.limit = 0
        self.num_rows = 1  # in its newest pass, as far as planned
        self.runs_on = False
        self.last_plan = 0  # of the group, when it last asked
        self.shadow_gap = 1
        self.rounds_to_shadow = 1

    def plan(self, source: DraftSource, estimate: AcceptanceEstimate, limit: int) -> RoundPlan:
        """Plan a round with at most `limit` draft tokens of `source`."""
        if limit == 0:
            self.num_rows, self.runs_on = 1, False
            return RoundPlan(0, 1)
        group = self._join()
        changed = source != self.source or self.estimate is None
        self.source, self.estimate, self.limit = source, estimate, limit
        plan = group.plan(self, is_new=changed)
        self.num_rows = 1 + plan.num_draft_tokens
        self.runs_on = plan.run_on > 0 and not group.is_drafting
        return plan

    @property
    def is_awaited(self) -> bool:
        """Whether the session goes on alone by a plan from before the others began to draft."""
        if self._replica is None or self.num_rows > 1:
            return False
        group = self._planner.group(self._replica)
        return group.is_drafting and self.runs_on

    def observe_pass(self, timing: Timing) -> None:
        """Take in who was in a target pass."""
        if self._replica is not None:
            self._planner.group(self._replica).observe_pass(timing)

    def observe_steps(self, timing: Timing) -> None:
        """Take in who was in the draft steps of a round."""
        if self._replica is not None:
            self._planner.group(self._replica).observe_steps(timing)

    def observe_shadow(self, num_drafted: int, num_matched: int) -> None:
        """Take in the outcome of a shadow draft; 0, 0: there is none."""
        if self._replica is not None:
            self._planner.group(self._replica).end_shadow(self)
        if num_drafted == 0 or self.estimate is None:
            return
        self.estimate.observe(num_drafted, num_matched)
        # A draft that stood whole is news where drafting did not pay: look again soon.
        is_whole = num_matched == num_drafted
        gap = self.shadow_gap // 2 if is_whole else 2 * self.shadow_gap
        self.shadow_gap = min(max(gap, 1), _LONGEST_SHADOW_GAP)

    def observe_round(self, plan: RoundPlan, actual_ms: float) -> None:
        """Take in how long a planned round with a draft took, to its first verdict."""
        if plan.predicted_ms > 0.0:
            self._planner.stats.predicted_ms += plan.predicted_ms
            self._planner.stats.actual_ms += actual_ms

    def leave(self) -> None:
        """The session is over. Idempotent."""
        if self._replica is not None:
            self._planner.leave(self, self._replica)
            self._replica = None

    def _join(self) -> _Group:
        replica = self._replica_now()
        if replica != self._replica:
            self.leave()
            self._replica = replica
            self._planner.group(replica).seats[self] = None
        return self._planner.group(replica)


class _Group:
    """The sessions of this router on one target replica, their mode and their newest plan."""

    def __init__(self, costs: PassCosts, stats: PlannerStats) -> None:
        self._costs = costs
        self._stats = stats
        self.seats: dict[Seat, None] = {}  # in order
        self._waiting: dict[Seat, int] = {}  # k of those that have not taken theirs yet
        self._plan = JointPlan((), 0, 0.0, 0.0)
        self.is_drafting = True
        self._num_plans = 0
        self._switched_at = 0
        self._is_plain_trial = False
        self._next_trial = 2  # what going without costs must be known early
        self._trial_gap = _TRIALS[0]
        self._shadowing: Seat | None = None
        self._others = _OthersEstimate()

    def plan(self, seat: Seat, *, is_new: bool) -> RoundPlan:
        if is_new or seat not in self._waiting:
            self._make_plan(seat)
        num_tokens = min(self._waiting.pop(seat), seat.limit)
        seat.last_plan = self._num_plans
        self._stats.lengths[num_tokens] += 1
        if num_tokens > 0:
            self.end_shadow(seat)  # given up, if it is under way
            seat.shadow_gap = seat.rounds_to_shadow = 1
            return RoundPlan(
                num_tokens,
                0,
                predicted_ms=self._plan.round_ms,
                is_typical=self._is_typical(num_tokens),
            )
        if self._is_plain_trial:
            return RoundPlan(0, 0)
        if self.is_drafting:  # others do
            return RoundPlan(0, PLAIN_STEPS[0])
        run_on = min(PLAIN_STEPS[0] * seat.shadow_gap, PLAIN_STEPS[1])
        return RoundPlan(0, run_on, num_shadow_tokens=self._shadow_length(seat))

    def observe_pass(self, timing: Timing) -> None:
        own_rows = sum(seat.num_rows for seat in self.seats)
        self._others.observe_pass(timing, len(self.seats), own_rows)
        if self.is_drafting and self._age >= _SETTLING and own_rows >= 2 * len(self.seats):
            self._others.observe_share(timing, len(self.seats))

    def observe_steps(self, timing: Timing) -> None:
        own = sum(1 for seat in self.seats if seat.num_rows > 1 and seat.source == "draft_model")
        self._others.observe_steps(timing, own)

    def end_shadow(self, seat: Seat) -> None:
        if self._shadowing is seat:
            self._shadowing = None

    def leave(self, seat: Seat) -> None:
        self.end_shadow(seat)
        self.seats.pop(seat, None)
        self._waiting.pop(seat, None)

    def _shadow_length(self, seat: Seat) -> int:
        """One at a time in a group: the draft model is idle, its machine may not be."""
        seat.rounds_to_shadow -= 1
        if seat.rounds_to_shadow > 0 or self._shadowing is not None:
            return 0
        seat.rounds_to_shadow = seat.shadow_gap
        self._shadowing = seat
        return min(_SHADOW_LENGTH, seat.limit)

    def _make_plan(self, asker: Seat) -> None:
        self._num_plans += 1
        self._stats.num_plans += 1
        asker.last_plan = self._num_plans
        members = [seat for seat in self.seats if self._num_plans - seat.last_plan <= _PATIENCE]
        self._is_plain_trial = False
        lengths = self._choose(members, asker)
        self._waiting = dict(zip(members, lengths, strict=True))

    def _choose(self, members: list[Seat], asker: Seat) -> list[int]:
        if not all(self._costs.is_known(seat.source) for seat in members):
            self._plan = JointPlan((), 0, 0.0, 0.0)
            return [_initial_length(seat) for seat in members]
        forecasts = [
            DraftForecast(_survival(seat, seat.limit), is_free=seat.source == "ngram")
            for seat in members
        ]
        others = self._others.now()
        plain = plain_plan(len(members), self._costs, others, PLAIN_STEPS[-1])
        drafting = best_drafting_plan(forecasts, self._costs, others)
        pays = drafting is not None and self._pays(drafting, plain)
        if pays != self.is_drafting:
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

    def _trial(self, members: list[Seat], asker: Seat) -> list[int]:
        """The other mode, for one round: plain for all, or a draft for the session that asks."""
        self._next_trial = self._num_plans + self._trial_gap
        self._trial_gap = min(2 * self._trial_gap, _TRIALS[1])
        if self.is_drafting:
            self._is_plain_trial = True
            return [0] * len(members)
        return [min(_SHADOW_LENGTH, s.limit) if s is asker else 0 for s in members]

    def _stretched(self, members: list[Seat]) -> list[int]:
        deepest = max(self._plan.lengths)
        return [
            min(k + 1, seat.limit) if k == deepest else k
            for k, seat in zip(self._plan.lengths, members, strict=True)
        ]


class _OthersEstimate:
    """Running means of who is in passes and draft steps, others and us."""

    def __init__(self) -> None:
        self._sessions = self._rows = self._drafting = 0.0
        self._our_share = 1.0

    def observe_pass(self, timing: Timing, own_sessions: int, own_rows: int) -> None:
        others = max(0, timing.num_sessions - own_sessions)
        # A prompt's rows are no lasting load: a few rows for each session is.
        most = (1 + _SHADOW_LENGTH) * others
        rows = min(max(0, timing.num_rows - own_rows), most)
        self._sessions += _SMOOTHING * (others - self._sessions)
        self._rows += _SMOOTHING * (rows - self._rows)

    def observe_steps(self, timing: Timing, own_drafting: int) -> None:
        self._drafting += _SMOOTHING * (timing.num_sessions - own_drafting - self._drafting)

    def observe_share(self, timing: Timing, own_sessions: int) -> None:
        share = max(1.0, timing.num_sessions - self._sessions) / own_sessions
        self._our_share += _SMOOTHING * (min(share, 1.0) - self._our_share)

    def now(self) -> Others:
        return Others(self._sessions, self._rows, self._drafting, self._our_share)


def _survival(seat: Seat, limit: int) -> tuple[float, ...]:
    return () if seat.estimate is None else tuple(seat.estimate.survival(limit))


def _initial_length(seat: Seat) -> int:
    """Before any measurement: draft while a token is more likely to stand than not."""
    return max(1, sum(1 for alive in _survival(seat, seat.limit) if alive > 0.5))
