"""Plans the rounds of the sessions on one target replica together.

A plan is a price. It has the depth of drafts, and the survival that a token must have for a row.
Each session takes its k from it by its own survival, at any time (`joint.JointPlan.length_of`).
Making a plan takes time, so one is used for many rounds.

To draft or not is the mode of all sessions. The mode that promises more is in use. Its promise is
the engines' time, what whole rounds took beyond that (`Overhead`), and texts beyond rounds
(`Lateness`). The planner measures the other mode now and then. If all draft, all go on alone for a
round (a control round). If nobody drafts, one session drafts for a round (a probe). The pause after
it is so long that little of the time is lost.
"""

from __future__ import annotations

import logging
import math
import time
from collections import deque
from collections.abc import Callable
from statistics import median

import msgspec

from models.costs.running_mean import running_mean
from models.protocol.messages import Timing
from router.gains import PlannerStats
from router.planning.ahead import AheadChoice
from router.planning.busy_clock import BusyClock
from router.planning.control import ControlRound
from router.planning.costs import PassCosts
from router.planning.joint import JointPlan, best_drafting_plan, plain_plan
from router.planning.member import PlanMember
from router.planning.others import OthersEstimate
from router.planning.overhead import Past
from router.planning.round_plan import CONTROL, PROBE, Mode, RoundPlan
from router.ports import DrafterTraits

_log = logging.getLogger(__name__)

# Worth in the scenarios of `python -m loadtest simulated`, by 3 s: median share of the best k over
# all, 0.982 as it was; 20 s where it says so: share where acceptance turns.
_PLANNING = 0.005  # share of the time for plans; one a round took 12% of 2 ms (decision 0009)
_BEGIN_MARGIN = 1.02  # drafting begins where it gives so much more; 1.1: 0.982
_END_MARGIN = 0.98  # 0.9: 0.974
_SMOOTHING = 3.0  # rounds over which the advantage is averaged; 0.01: 0.979, worst 0.76 (of 0.80)
_DWELL = 5  # rounds of each session that drafting is given before it may be called off; 0: 0.977
_SETTLING = 3  # rounds of each session after a change of mode until they are in step; 0: 0.977
_PATIENCE = 16  # rounds of others that a session may miss (test_a_session_that_is_away...)
_ODD = 2.0  # times as promised: it waited for a prompt; 10 times would add a fifth to the mean
_TEXT_WEIGHT = 0.1  # of the newest text in the mean of their lengths, some ten texts
_CONTROL_LOSING = 0.005  # share of the time that control rounds may lose
_PROBE_LENGTH = 4  # positions that are estimated one by one; 2: 0.91 at 20 s, in place of 1.01
_PROBE_LOSING = 0.005  # share of the time that probes may lose; 0.02 and a length of 2: 0.91 (0.81)
_LEAST_LOSS = 0.1  # part of such a round that counts as lost in any case; 0.3: 0.70 (0.81) at 20 s
_MOST_PAUSE_S = 60.0  # an interrupted round made it 25 minutes, on a machine under other load


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
        self._clock = BusyClock(clock)
        self._pinned = pinned
        self.sessions: dict[PlanMember, None] = {}  # in order
        self.mode = Mode.PLAIN if pinned == 0 else Mode.DRAFTING
        self.plans: dict[Mode, JointPlan] = {}
        self._newest_plans_s: deque[float] = deque(maxlen=5)  # time of making them
        self._planned_at_s = self._plan_at_s = 0.0  # when they were made, and will be anew
        self._num_planned = self._num_away = 0  # sessions that the newest plans are for, or not
        self._num_rounds = self._mode_since = 0  # a round's number
        self._advantage = 1.0  # rate with drafts over that of plain decoding
        self._others = OthersEstimate()
        self.ahead, self._is_ahead = AheadChoice(self._clock), True  # chosen, and planned for
        self._past = {mode: Past() for mode in Mode}
        self._text_tokens: float | None = None  # mean length of a text
        self._is_new = True  # the mode is not judged
        self.control = ControlRound()
        self.prober: PlanMember | None = None  # who makes the next probe
        self._has_probed, self._chosen_at_s, self._num_prober_tokens = False, 0.0, 0
        self._measure_at_s: float | None = None  # when the other mode is; None: not known yet

    @property
    def is_drafting(self) -> bool:
        """True if sessions that could draft would now; none does beside a control round."""
        return self.mode is Mode.DRAFTING and not self.control.is_on

    def _note_control(self, *, has_ended: bool) -> None:
        """Plan anew where a control round is over for all."""
        if has_ended:
            self._plan_at_s = 0.0
            self._measure_later(self._control_loss_ms / _CONTROL_LOSING)

    def wants_drafter(self, session: PlanMember) -> bool:
        """Return whether a session's drafter is worth connecting to: it drafts, or is to probe."""
        return self.is_drafting or self.prober is session

    def join(self, session: PlanMember) -> None:
        """Plan with this session too, until it leaves."""
        self._clock.start()
        self.sessions[session] = None
        session.begin()

    def plan(self, session: PlanMember, *, is_ready: bool) -> RoundPlan:
        """Plan the next round of a session, which is one of `sessions`."""
        # One that reads a prompt is not observed.
        self._note_control(has_ended=self.control.end_round(session, self._num_rounds))
        self._num_rounds += 1
        session.last_round = self._num_rounds
        now_s = self._clock()
        if self._is_new and not self._is_early:  # judge it, however long a plan is kept
            self._is_new, self._plan_at_s = False, now_s
        is_other_way = self._is_ahead is not self.ahead.is_on
        if now_s >= self._plan_at_s or is_other_way or self._is_other_crowd(self._num_planned):
            self._make_plans(now_s)
        if self._is_control_due(now_s):
            self.control.begin(self._present(), self._num_rounds)
            self._measure_later(self._control_loss_ms / _CONTROL_LOSING)
        mode = Mode.DRAFTING if self.is_drafting else Mode.PLAIN
        plan = self.plans.get(mode)
        if mode is Mode.DRAFTING:
            asked = self._drafting_round(session, plan, is_ready=is_ready)
        else:
            asked = self._plain_round(session, now_s, is_ready=is_ready)
        session.modes.add(None if asked.is_probe else mode)
        session.num_planned = session.num_planned or self._num_planned
        is_beside = mode is not self.mode  # or one itself
        price = 0.0 if plan is None else plan.min_survival
        return msgspec.structs.replace(
            asked,
            is_typical=asked.is_control or (asked.is_typical and self._age >= _SETTLING),
            min_survival=math.inf if is_beside else price,  # no free drafts either
            mode=mode,
            promise=plan,
        )

    def _drafting_round(
        self, session: PlanMember, plan: JointPlan | None, *, is_ready: bool
    ) -> RoundPlan:
        if not is_ready or session.limit == 0 or session.drafter is None:
            return RoundPlan(0, 1, reason="no draft to be had")
        if self._pinned is not None:
            return RoundPlan(min(self._pinned, session.limit), 0, reason="pinned")
        # Draft while a token is likely to be accepted; older plans are of others' drafts.
        if plan is None or not self._costs.is_known(session.drafter):
            likely = sum(1 for alive in session.survival() if alive > 0.5)
            return RoundPlan(max(1, likely), 0, is_typical=False, reason="learning")
        length = plan.length_of(session.survival(), is_free=session.copies)
        is_deep = session.copies or length >= plan.depth
        return RoundPlan(length, 0, reason="depth" if is_deep else "price")

    def _plain_round(self, session: PlanMember, now_s: float, *, is_ready: bool) -> RoundPlan:
        if self.control.enter(session):
            return RoundPlan(0, session.run_on, reason=CONTROL)
        if self._is_to_probe(session, now_s):
            if not is_ready:  # soon, for its text may be short
                return RoundPlan(0, 1, is_typical=False, reason="probes soon")
            self._has_probed = True
            self._stats.num_probe_rounds += 1
            length = min(_PROBE_LENGTH, session.limit)
            return RoundPlan(length, session.run_on, is_typical=False, reason=PROBE)
        reason = "beside control" if self.mode is Mode.DRAFTING else "plain pays"
        return RoundPlan(0, session.run_on, reason=reason)

    # --- rounds to measure the other mode ------------------------------------------------------

    def _is_control_due(self, now_s: float) -> bool:
        """Return whether all are to go on alone for a round.

        The first is due at once where plain decoding would pay if it took engines' time alone.
        """
        is_held = self._is_early or self.control.is_on or self._pinned is not None
        if self.mode is Mode.PLAIN or is_held or len(self.plans) < len(Mode):
            return False
        if self._measure_at_s is None:
            self._measure_later(self._control_loss_ms / _CONTROL_LOSING)
            plain = self.plans[Mode.PLAIN]
            hoped = len(plain.lengths) / max(plain.engine_ms, 1e-9)
            is_unknown = self._past[Mode.PLAIN].rounds.num_rounds == 0
            return is_unknown and hoped > self.rate(Mode.DRAFTING)
        return now_s >= self._measure_at_s

    @property
    def _control_loss_ms(self) -> float:
        """The loss of each session by a control round."""
        drafting, plain = (max(self.rate(mode), 1e-9) for mode in (Mode.DRAFTING, Mode.PLAIN))
        took_ms = sum(1 + session.run_on for session in self.sessions) / plain
        return took_ms * max(1.0 - plain / drafting, _LEAST_LOSS)

    def _is_to_probe(self, session: PlanMember, now_s: float) -> bool:
        """Return whether a session is the one to make a probe, and has room for it.

        One whose drafter is not connected is chosen too. It connects, and probes in a later round.
        """
        if self.mode is Mode.DRAFTING or self._measure_at_s is None or session.limit == 0:
            return False
        if self.prober is None and now_s >= self._measure_at_s:
            self.prober, self._has_probed = session, False
            self._chosen_at_s, self._num_prober_tokens = now_s, 0
        return self.prober is session and not self._has_probed

    def _end_probe(self) -> None:
        """Count the time since the session was chosen; its drafter read the text meanwhile."""
        plain = self.plans.get(Mode.PLAIN)
        usual_ms = 0.0 if plain is None else self._num_prober_tokens * plain.round_ms
        elapsed_ms = (self._clock() - self._chosen_at_s) * 1e3
        self._probe_later(max(elapsed_ms - usual_ms, _LEAST_LOSS * elapsed_ms))

    def _probe_again(self) -> None:
        """Let the session ask again further on: at first a text has nothing to be copied.

        Were that the end, texts that come one by one would all be asked at their beginning only.
        """
        self._has_probed = False
        self._chosen_at_s, self._num_prober_tokens = self._clock(), 0

    def _probe_later(self, lost_ms: float) -> None:
        """Let the next probe come so late that little of all sessions' time is lost."""
        self.prober = None
        self._measure_later(lost_ms / max(1, len(self.sessions)) / _PROBE_LOSING)

    def _measure_later(self, pause_ms: float) -> None:
        self._measure_at_s = self._clock() + min(pause_ms / 1e3, _MOST_PAUSE_S)

    # --- what is learnt ------------------------------------------------------------------------

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

    def observe_round(
        self, session: PlanMember, plan: RoundPlan, num_tokens: int, elapsed_ms: float
    ) -> None:
        """Take in what a planned round of a session gave, and in which time."""
        if plan.is_control:
            self._stats.num_control_rounds += 1
            self._note_control(has_ended=self.control.end_round(session, self._num_rounds))
        if self.prober is session:
            self._num_prober_tokens += num_tokens
            if self._has_probed and plan.is_missed and session.copies:
                self._probe_again()
            elif self._has_probed:
                self._end_probe()
        session.num_tokens += num_tokens
        session.elapsed_ms += elapsed_ms
        promise = plan.promise
        if plan.mode is None or promise is None or not plan.is_typical:
            return
        is_other = not plan.is_control and self._is_other_crowd(len(promise.lengths))
        if is_other or (plan.mode is Mode.DRAFTING and self.ahead.is_turn):
            return  # the first of a burst was promised more
        share = plan.rounds_in(num_tokens)
        round_ms = min(share * elapsed_ms, _ODD * promise.round_ms)
        self._past[plan.mode].rounds.observe(round_ms, promise.work, self._clock())
        self._stats.predicted_ms += promise.round_ms / share
        self._stats.actual_ms += elapsed_ms

    def leave(self, session: PlanMember, num_tokens: int) -> None:
        """Plan without this session from now on; its text is over if it has tokens."""
        if self.prober is session:  # its drafter has read the text for nothing
            lost_ms = 0.0 if session.copies else (self._clock() - self._chosen_at_s) * 1e3
            self._probe_later(lost_ms)
        if num_tokens > 0:
            self._observe_text(session, num_tokens)
        self.sessions.pop(session, None)
        self._note_control(has_ended=self.control.leave(session))
        if not self.sessions:
            self._clock.stop()

    def _observe_text(self, session: PlanMember, num_tokens: int) -> None:
        """Take in a text that is over; its time says something of a mode if it had one only."""
        self._text_tokens = running_mean(self._text_tokens, num_tokens, _TEXT_WEIGHT)
        for mode, past in self._past.items():
            is_its = session.modes == {mode} and session.num_tokens > 0
            if is_its and not self._is_other_crowd(session.num_planned):
                text = session.num_tokens, session.elapsed_ms, session.num_planned
                past.texts.observe(*text, self._clock())

    # --- plan and mode of all ------------------------------------------------------------------

    def _make_plans(self, now_s: float) -> None:
        began_s = time.perf_counter()
        members = self._present()
        num_before, self._num_planned = self._num_planned, len(members)
        self._num_away = len(self.sessions) - len(members)
        drafters = {s.drafter.name: s.drafter for s in members if s.drafter is not None}
        if all(self._costs.is_known(drafter) for drafter in drafters.values()):
            self._plan_for(members, drafters, now_s)
            if self._is_other_crowd(num_before):  # the first of a burst says little of all
                self._planned_at_s = now_s
            else:
                self._choose_mode(now_s)
        self._stats.num_plans += 1
        self._stats.planning_ms += (time.perf_counter() - began_s) * 1e3
        # One that was interrupted would else keep the plan it made for a hundred others.
        self._newest_plans_s.append(self._clock() - now_s)
        self._plan_at_s = now_s + median(self._newest_plans_s) / _PLANNING

    def _present(self) -> list[PlanMember]:
        """Return the sessions that have planned a round lately."""
        patience = _PATIENCE * len(self.sessions)
        return [s for s in self.sessions if self._num_rounds - s.last_round <= patience]

    def _is_other_crowd(self, num_planned: int) -> bool:
        """Return whether sessions are twice as many as planned for, or half."""
        few, many = sorted((num_planned, len(self.sessions) - self._num_away))
        return many >= 2 * few

    def _plan_for(
        self, members: list[PlanMember], drafters: dict[str, DrafterTraits], now_s: float
    ) -> None:
        self._is_ahead = self.ahead.is_on
        costs, others = self._costs.of_round(drafters, self._is_ahead), self._others.now(drafters)
        terms = len(members), costs, others, now_s
        plain_ms = self._past[Mode.PLAIN].rounds.of(*terms)
        # What holds up a step likely holds up a round with drafts as well.
        drafting_ms = self._past[Mode.DRAFTING].rounds.of(*terms, usual_ms=max(0.0, plain_ms))
        self.plans = {Mode.PLAIN: plain_plan(len(members), costs, others, plain_ms)}
        forecasts = [session.forecast() for session in members]
        text_tokens = math.inf if self._text_tokens is None else self._text_tokens
        drafting = best_drafting_plan(forecasts, costs, others, drafting_ms, text_tokens)
        if drafting is not None:
            self.plans[Mode.DRAFTING] = drafting

    def _choose_mode(self, now_s: float) -> None:
        """Choose the mode that promises more tokens per ms."""
        drafting, plain = self.rate(Mode.DRAFTING), self.rate(Mode.PLAIN)
        advantage = drafting / plain if plain > 0.0 else 1.0
        num_steps = max(session.run_on for session in self.sessions)
        rounds_ms = [plan.round_ms for plan in self.plans.values()]
        smoothing_ms = _SMOOTHING * max(num_steps * self.plans[Mode.PLAIN].round_ms, *rounds_ms)
        weight = min(1.0, (now_s - self._planned_at_s) * 1e3 / max(smoothing_ms, 1e-9))
        self._planned_at_s = now_s
        self._advantage += weight * (advantage - self._advantage)
        margin = _END_MARGIN if self.mode is Mode.DRAFTING else _BEGIN_MARGIN
        mode = Mode.DRAFTING if self._advantage > margin else Mode.PLAIN
        is_held = self.control.is_on or self._pinned is not None or self.ahead.is_turn
        if mode is self.mode or is_held or (mode is Mode.PLAIN and self._is_early):
            return
        self.ahead.forget()
        self._past[self.mode].end_use(now_s)
        self._past[mode].begin_use(now_s)
        self.mode, self._mode_since, self._is_new = mode, self._num_rounds, True
        self.prober = None
        self._measure_at_s = now_s if mode is Mode.PLAIN else None
        _log.debug("%s: %.4f tokens/ms with drafts, %.4f without", mode, drafting, plain)

    def rate(self, mode: Mode) -> float:
        """Tokens per ms that a mode would give; 0.0: it is not to be had.

        The newest plan promises them. Texts as they were say how late that comes.
        """
        plan = self.plans.get(mode)
        if plan is None:
            return 0.0
        rate, num_sessions = plan.tokens_per_ms, len(plan.lengths)
        late = self._past[mode].texts
        return rate / late.of(rate / num_sessions, num_sessions, self._planned_at_s)

    @property
    def _age(self) -> float:
        """Rounds of each session since the mode changed."""
        return (self._num_rounds - self._mode_since) / max(1, len(self.sessions))

    @property
    def _is_early(self) -> bool:
        """True if too little is known of drafting to call it off."""
        return self._age < _DWELL
