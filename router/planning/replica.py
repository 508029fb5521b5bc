"""The sessions of this router on one target replica: their mode, their plan, and what it is worth.

A plan is a price. It has the depth of drafts, and the survival that a token must have for a row.
Each session takes its k from it by its own survival, at any time (`joint.JointPlan.length_of`).
Replanning may use 0.5% of the time, so one plan is used for many rounds. For example, a plan takes
0.2 ms and holds for 40 ms. That is some ten rounds of a small model and less than one of a large
one.

The mode, to draft or not, is the one that promises more. The time of rounds beyond the engines'
time is fitted to real rounds, for each mode (`measured.Overheads`). So is the delay against the
promise (`measured.Lateness`). The other mode is tried now and then, in both directions. All
sessions go on alone for a round, or draft for a few. The pause after such a stretch is so long that
all stretches together lose half a hundredth. An idle drafter drafts beside plain steps in the same
way (a shadow draft). It may use 2% of the time.
"""

from __future__ import annotations

import dataclasses
import logging
import math
import time
from collections import deque
from collections.abc import Callable
from statistics import median

import msgspec

from models.costs.running_mean import running_mean
from models.protocol.messages import Timing
from router.planning.costs import PassCosts
from router.planning.exploring import ShadowTurn, Stretches
from router.planning.joint import JointPlan, best_drafting_plan, plain_plan
from router.planning.measured import Lateness, Overheads, PlannerStats
from router.planning.member import PlanMember
from router.planning.others import OthersEstimate
from router.planning.round_plan import PLAIN_STEPS, Mode, Promise, RoundPlan
from router.ports import DrafterTraits

_log = logging.getLogger(__name__)

_PLANNING = 0.005  # share of the time that making plans may take

_BEGIN_MARGIN = 1.02  # drafting begins where it gives so much more
_END_MARGIN = 0.98
_SMOOTHING = 3.0  # rounds over which that is averaged: each session that ends changes the plan
_DWELL = 5  # rounds of each session that drafting is given before it may be called off
_SETTLING = 3  # rounds of each session after a change of mode until sessions are in step
_LASTING = 16  # rounds of each session; then plain decoding may go on for long at once
_FIRST_TRY = 8  # rounds of each session before a mode that never was is tried
_STRETCH = {Mode.DRAFTING: "trial", Mode.PLAIN: "control"}  # names of their rounds
_PROMISING = 0.9  # part of the mode's rate: the other mode is tried seldom if it promises less
_FAIR = 0.5  # part of its tokens if all went on alone: a session does so if a draft gives less
_CONTROL_STEPS = 7  # that the target goes on alone in a round made to be measured
_SHADOW_LENGTH = 3  # as many positions as `acceptance` estimates one by one
_LONGER_EVERY = 16  # rounds; then one token more, or later positions stay unknown
_MEASURED_EVERY_MS = 16.0  # only a part of the rounds shorter than this is measured
_LEAST_MEASURED = 0.1
_ODD = 2.0  # times what it was to take, and a round waited for something that a plan has not
_TEXT_WEIGHT = 0.1  # weight of the newest text in the mean of their lengths
_GOLDEN = 0.618034
_PATIENCE = 16  # rounds of the others that a session may miss before it counts as away

PLAIN_REASON = "plain pays"


class ReplicaPlanner:
    """Plans for the sessions on one replica.

    Args:
        costs: of all sessions of the router.
        stats: of the router.
        clock: seconds.
        pinned: k of every session in place of the plan's, to measure what planning costs.
    """

    def __init__(
        self,
        costs: PassCosts,
        stats: PlannerStats,
        clock: Callable[[], float] = time.perf_counter,
        pinned: int | None = None,
    ) -> None:
        self._costs = costs
        self._stats = stats
        self._clock = clock
        self._pinned = pinned
        self.sessions: dict[PlanMember, None] = {}  # in order
        self.mode = Mode.PLAIN if pinned == 0 else Mode.DRAFTING
        self.plans: dict[Mode, JointPlan] = {}
        self._promises: dict[Mode, Promise] = {}  # by the plans
        self.version = 0  # number of the plans
        self._newest_plans_s: deque[float] = deque(maxlen=5)  # time of making them
        self._planned_at_s = self._plan_at_s = 0.0  # when they were made, and will be anew
        self.num_rounds = 0
        self._mode_since = 0  # number of a round
        self._advantage = 1.0  # rate with drafts over that of plain decoding
        self._others = OthersEstimate()
        self._overheads = {mode: Overheads() for mode in Mode}
        self._text_tokens: float | None = None  # mean length of a text
        self._lateness = {mode: Lateness() for mode in Mode}
        self._stretches = Stretches()
        self._shadow = ShadowTurn()

    @property
    def arm(self) -> Mode:
        """The mode of rounds that begin now: the usual one, or the other one for a stretch."""
        return _other(self.mode) if self._stretches.is_on else self.mode

    @property
    def is_drafting(self) -> bool:
        """True if sessions that could draft would now."""
        return self.arm is Mode.DRAFTING

    def plan(self, session: PlanMember, *, is_ready: bool) -> RoundPlan:
        """Plan the next round of a session, which is one of `sessions`."""
        self.num_rounds += 1
        session.last_round = self.num_rounds
        now_s = self._clock()
        if not self._stretches.is_on:
            if now_s >= self._plan_at_s:
                self._make_plans(now_s)
            if self._is_stretch_due(now_s):
                self._begin_stretch(now_s)
        plan = self._plan_in_arm(session, now_s, is_ready=is_ready)
        if self._stretches.is_on:
            self._stretches.count_down(is_waiting=self.is_drafting and not plan.num_draft_tokens)
        return plan

    def takes_measure(self, plan: RoundPlan) -> bool:
        """Return whether a planned round is to be measured: all of a stretch, a part of short ones.

        Measuring takes time of the loop, and a round of 1 ms says less than one of 40 ms. Which are
        taken must not follow the turns of the sessions, so it is by multiples of the golden ratio.
        """
        promise = plan.promise
        if promise is None or plan.is_stretch:
            return True
        share = max(_LEAST_MEASURED, promise.round_ms * max(1, plan.run_on) / _MEASURED_EVERY_MS)
        return self.num_rounds * _GOLDEN % 1.0 < share

    def wants_drafter(self, session: PlanMember) -> bool:
        """Return whether a session's drafter is worth connecting to: it drafts, or is to shadow."""
        return self.is_drafting or self._shadow.session is session

    # --- what is learnt ------------------------------------------------------------------------

    def observe_pass(self, timing: Timing) -> None:
        """Take in how many sessions and rows were in a target pass."""
        own_rows = sum(session.num_rows for session in self.sessions)
        self._others.observe_pass(timing, len(self.sessions), own_rows)
        if self.is_drafting and self._is_settled and own_rows >= 2 * len(self.sessions):
            self._others.observe_share(timing, len(self.sessions))

    def observe_steps(self, drafter: DrafterTraits, timing: Timing) -> None:
        """Take in how many sessions were in the draft steps of a round."""
        drafting = [s.drafter for s in self.sessions if s.num_rows > 1 and s.drafter is not None]
        own = sum(1 for each in drafting if each.name == drafter.name)
        self._others.observe_steps(drafter.name, timing, own)

    def observe_round(self, plan: RoundPlan, num_tokens: int, elapsed_ms: float) -> None:
        """Take in what a planned round of a session gave, and in which time."""
        promise = plan.promise
        if plan.mode is None or promise is None:
            return
        has_draft = plan.num_draft_tokens > 0
        share = plan.rounds_in(num_tokens)
        if plan.is_typical or not plan.is_stretch:
            promised_ms = promise.round_ms / share
            self._lateness[plan.mode].observe(promised_ms, elapsed_ms, self._clock())
        if plan.is_stretch:
            expected = promise.num_tokens if has_draft else num_tokens
            self._note_stretch_round(plan.mode, expected, elapsed_ms)
        if plan.num_shadow_tokens > 0:
            self._shadow.note_delay(elapsed_ms - promise.round_ms / share)
        elif plan.is_typical:
            self._overheads[plan.mode].observe(
                len(self.sessions),
                promise.depth,
                share * elapsed_ms - promise.engine_ms,
                _ODD * promise.round_ms - promise.engine_ms,
            )
            self._stats.predicted_ms += promise.round_ms / share
            self._stats.actual_ms += elapsed_ms

    def end_shadow(self, session: PlanMember, elapsed_ms: float = 0.0) -> None:
        """Let others have shadow drafts, if this session was the one that had; it took so long."""
        if self._shadow.session is session:
            self._shadow.end(elapsed_ms, self._clock(), is_promising=self._is_promising)

    def leave(self, session: PlanMember, num_tokens: int) -> None:
        """Plan without this session from now on; its text is over if it has tokens."""
        self.end_shadow(session)
        self.sessions.pop(session, None)
        if num_tokens > 0:
            self._text_tokens = running_mean(self._text_tokens, num_tokens, _TEXT_WEIGHT)

    # --- one session's round -------------------------------------------------------------------

    def _plan_in_arm(self, session: PlanMember, now_s: float, *, is_ready: bool) -> RoundPlan:
        reason = _STRETCH[self.arm] if self._stretches.is_on else ""
        if self.arm is Mode.PLAIN:
            asked = self._plain_plan(session, now_s, reason, is_ready=is_ready)
            return self._promised(Mode.PLAIN, asked)
        self.end_shadow(session)
        plan = self.plans.get(Mode.DRAFTING)
        if not is_ready or session.limit == 0:
            asked = RoundPlan(0, 1, reason=reason or "no draft to be had")
        elif plan is None or self._pinned is not None:
            length = _initial_length(session) if self._pinned is None else self._pinned
            asked = RoundPlan(min(length, session.limit), 0, reason=reason or "learning")
        else:
            asked = self._drafting_plan(session, plan, reason)
        return self._promised(Mode.DRAFTING, asked)

    def _drafting_plan(self, session: PlanMember, plan: JointPlan, reason: str) -> RoundPlan:
        length = session.length_by(plan, self.version)
        if length == 0:
            return RoundPlan(0, PLAIN_STEPS[0], is_typical=False, reason=reason or "others draft")
        is_free = session.drafter is not None and session.drafter.is_free
        reason = reason or ("depth" if is_free or length >= plan.depth else "price")
        # All in the same round: others would wait for the step as well.
        is_longer = self.num_rounds // len(self.sessions) % _LONGER_EVERY == 0
        if is_longer and length < session.limit:
            return RoundPlan(length + 1, 0, is_typical=False, reason=reason)
        return RoundPlan(length, 0, reason=reason)

    def _plain_plan(
        self, session: PlanMember, now_s: float, reason: str, *, is_ready: bool
    ) -> RoundPlan:
        if reason:
            return RoundPlan(0, _CONTROL_STEPS, reason=reason)
        first = PLAIN_STEPS[0] if self._age < _LASTING else PLAIN_STEPS[-1]
        return RoundPlan(
            0,
            session.next_run_on((first, PLAIN_STEPS[-1])),
            num_shadow_tokens=self._shadow_length(session, now_s, is_ready=is_ready),
            reason=PLAIN_REASON,
        )

    def _promised(self, mode: Mode, asked: RoundPlan) -> RoundPlan:
        """Return a round of `mode` with the newest plan's promise."""
        plan = self.plans.get(mode)
        return msgspec.structs.replace(
            asked,
            mode=mode,
            is_typical=asked.is_typical and self._is_settled,
            is_stretch=self._stretches.is_on,
            min_survival=self._min_survival(plan),
            promise=self._promises.get(mode),
        )

    def _min_survival(self, plan: JointPlan | None) -> float:
        """Return the least survival of a plan's tokens.

        It is infinite, so that no token survives, if a round is to have no drafts.
        """
        if self._stretches.is_on and self.arm is Mode.PLAIN:
            return math.inf
        return 0.0 if plan is None else plan.min_survival

    def _shadow_length(self, session: PlanMember, now_s: float, *, is_ready: bool) -> int:
        if self._pinned is not None or not self._shadow.take(session, now_s, is_ready=is_ready):
            return 0
        self._stats.num_shadow_drafts += 1
        return min(_SHADOW_LENGTH, session.limit)

    # --- stretches of the other mode -----------------------------------------------------------

    def _is_stretch_due(self, now_s: float) -> bool:
        other = _other(self.mode)
        if other not in self.plans or self._pinned is not None or self._age < _FIRST_TRY:
            return False
        return self._stretches.is_due(now_s)

    def _begin_stretch(self, now_s: float) -> None:
        other = _other(self.mode)
        num_steps = 1 + _CONTROL_STEPS if other is Mode.PLAIN else 1
        round_ms = num_steps * self.plans[other].round_ms
        self._stretches.begin(other, len(self.sessions), round_ms, now_s)

    def _note_stretch_round(self, mode: Mode, num_tokens: float, elapsed_ms: float) -> None:
        num_sessions = max(1, len(self.sessions))
        usual_per_ms = max(self.rate(self.mode), 1e-9) / num_sessions
        lost_ms = (elapsed_ms - num_tokens / usual_per_ms) / num_sessions
        self._stretches.note_loss(lost_ms, self._clock(), is_promising=self._is_promising)
        if mode is Mode.PLAIN:
            self._stats.num_control_rounds += 1
        else:
            self._stats.num_trial_rounds += 1

    # --- plan and mode of all ------------------------------------------------------------------

    def _make_plans(self, now_s: float) -> None:
        began_s = time.perf_counter()
        patience = _PATIENCE * len(self.sessions)
        members = [s for s in self.sessions if s.is_present(self.num_rounds, patience)]
        drafters = {s.drafter.name: s.drafter for s in members if s.drafter is not None}
        if all(self._costs.is_known(drafter) for drafter in drafters.values()):
            self._plan_for(members, drafters)
            self._choose_mode(now_s)
        self._stats.num_plans += 1
        self._stats.planning_ms += (time.perf_counter() - began_s) * 1e3
        # One that was interrupted would else keep the plan it made for a hundred others.
        self._newest_plans_s.append(self._clock() - now_s)
        self._plan_at_s = now_s + median(self._newest_plans_s) / _PLANNING

    def _plan_for(self, members: list[PlanMember], drafters: dict[str, DrafterTraits]) -> None:
        forecasts = [session.forecast() for session in members]
        costs, others = self._costs.of_round(drafters), self._others.now(drafters)
        overhead_ms = {mode: self._overheads[mode].of(len(members)) for mode in Mode}
        plain = plain_plan(len(members), costs, others, overhead_ms[Mode.PLAIN](0))
        text_tokens = math.inf if self._text_tokens is None else self._text_tokens
        drafting = best_drafting_plan(
            forecasts, costs, others, overhead_ms[Mode.DRAFTING], text_tokens
        )
        self.plans = {Mode.PLAIN: plain}
        if drafting is not None:
            fair_tokens = _FAIR * drafting.round_ms / plain.round_ms
            self.plans[Mode.DRAFTING] = dataclasses.replace(drafting, min_tokens=fair_tokens)
        self._promises = {mode: _promise(plan) for mode, plan in self.plans.items()}
        self.version += 1

    def _choose_mode(self, now_s: float) -> None:
        """Choose the mode that promises more tokens per ms.

        Drafting begins where it gives more by `_BEGIN_MARGIN`, and ends by `_END_MARGIN`.
        """
        drafting, plain = self.rate(Mode.DRAFTING), self.rate(Mode.PLAIN)
        advantage = drafting / plain if plain > 0.0 else 1.0
        plain_ms = PLAIN_STEPS[-1] * self.plans[Mode.PLAIN].round_ms
        smoothing_ms = _SMOOTHING * max(plain_ms, *(p.round_ms for p in self.plans.values()))
        weight = min(1.0, (now_s - self._planned_at_s) * 1e3 / max(smoothing_ms, 1e-9))
        self._planned_at_s = now_s
        self._advantage += weight * (advantage - self._advantage)
        margin = _END_MARGIN if self.mode is Mode.DRAFTING else _BEGIN_MARGIN
        mode = Mode.DRAFTING if self._advantage > margin else Mode.PLAIN
        is_too_soon = self.mode is Mode.DRAFTING and self._age < _DWELL
        is_held = is_too_soon or self._stretches.is_on or self._pinned is not None
        if mode is self.mode or is_held:
            return
        self.mode = mode
        self._mode_since = self.num_rounds
        self._shadow.restart(now_s)
        self._stretches.restart(now_s, smoothing_ms)
        _log.debug(
            "%s from now on: %.4f tokens/ms with drafts, %.4f without; k %s, depth %d, "
            "a row is worth a survival of %.2f",
            mode.value,
            drafting,
            plain,
            self.plans[mode].lengths,
            self.plans[mode].depth,
            self.plans[mode].min_survival,
        )

    def rate(self, mode: Mode) -> float:
        """Tokens per ms that a mode would give, by its newest plan and as late as its rounds were.

        0.0: it is not to be had.
        """
        plan = self.plans.get(mode)
        return 0.0 if plan is None else plan.tokens_per_ms / self._lateness[mode].factor

    @property
    def _is_promising(self) -> bool:
        """True if the other mode is not far behind the present one."""
        return self.rate(_other(self.mode)) > _PROMISING * self.rate(self.mode)

    @property
    def _is_settled(self) -> bool:
        """True if sessions have come into step since they all began to do something else."""
        if self._stretches.is_on:
            return self._stretches.is_settled
        return self._age >= _SETTLING

    @property
    def _age(self) -> float:
        """Rounds of each session since the mode changed."""
        return (self.num_rounds - self._mode_since) / max(1, len(self.sessions))


def _promise(plan: JointPlan) -> Promise:
    """Return a plan's promise for each of its sessions."""
    num_tokens = plan.num_tokens / len(plan.lengths)
    return Promise(num_tokens, plan.depth, plan.engine_ms, plan.round_ms)


def _other(mode: Mode) -> Mode:
    return Mode.PLAIN if mode is Mode.DRAFTING else Mode.DRAFTING


def _initial_length(session: PlanMember) -> int:
    """Return the first k: draft while a token is more likely to be accepted than not."""
    return max(1, sum(1 for alive in session.survival() if alive > 0.5))
