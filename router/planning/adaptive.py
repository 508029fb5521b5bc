"""The planner that all sessions of a router share, and each session's part in it."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

from models.protocol.messages import Timing
from router.gains import Gains, PlannerStats
from router.planning.acceptance import AcceptanceEstimate
from router.planning.costs import PassCosts
from router.planning.member import PlanMember
from router.planning.planner import ReplicaPlanner
from router.planning.round_plan import Mode, RoundPlan
from router.ports import DrafterTraits, TaskClass
from router.types import Explanation

_MAX_EMPTY_REPLICAS = 16  # replicas come and go under new names: the last ones are remembered


class RouterPlanner:
    """The planners that all sessions of a router share: one for each target replica.

    Args:
        costs: of passes and draft steps.
        clock: seconds.
        pinned: see `ReplicaPlanner`.
    """

    def __init__(
        self,
        costs: PassCosts,
        clock: Callable[[], float] = time.perf_counter,
        pinned: int | None = None,
    ) -> None:
        self.costs = costs
        self.stats = PlannerStats()
        self.gains = Gains(clock)
        self._clock = clock
        self._pinned = pinned
        self._replicas: dict[str, ReplicaPlanner] = {}

    def replica(self, name: str) -> ReplicaPlanner:
        """Return the planner of the sessions on a target replica; it is the newest now."""
        new = ReplicaPlanner(self.costs, self.stats, self._clock, self._pinned)
        self._replicas[name] = replica = self._replicas.pop(name, new)
        return replica

    @property
    def num_sessions(self) -> int:
        """Sessions that are planned for now, on all replicas."""
        return sum(len(replica.sessions) for replica in self._replicas.values())

    @property
    def num_draft_rows(self) -> int:
        """Rows of their newest passes beside one for each session, on all replicas."""
        planned = (session for one in self._replicas.values() for session in one.sessions)
        return sum(session.num_rows - 1 for session in planned)

    @property
    def newest(self) -> str:
        """The replica that a session joined or left last: one that has none is planned with it."""
        return next(reversed(self._replicas), "")

    def leave(self, session: PlannedSession, name: str, num_tokens: int) -> None:
        """Let a session go from a replica, at the end of a text of so many tokens; 0: before it.

        A replica without sessions keeps its mode for the next one to come, for a while. Otherwise
        requests that come one by one would each find out anew whether drafting pays.
        """
        replica = self._replicas.pop(name)
        replica.leave(session, num_tokens)
        self._replicas[name] = replica  # the last to be forgotten, if it is empty
        empty = [name for name, other in self._replicas.items() if not other.sessions]
        for name in empty[:-_MAX_EMPTY_REPLICAS]:
            del self._replicas[name]


class PlannedSession(PlanMember):
    """Plans the rounds of one session together with all others on its target replica.

    Args:
        planner: of the router.
        estimates: acceptance of each drafter that may draft for the session, by name.
        replica: names the session's target replica, which may change.
        max_length: the highest k.
        run_on: plain steps per round where nobody drafts.
        task: the class that the session's rounds are counted in.

    Attributes:
        max_branches: outcomes of a verification that may be drafted after ahead of it.
    """

    def __init__(
        self,
        planner: RouterPlanner,
        estimates: Mapping[str, AcceptanceEstimate],
        replica: Callable[[], str],
        *,
        max_length: int,
        run_on: int,
        task: TaskClass = "free",
    ) -> None:
        super().__init__(estimates, max_length, run_on)
        self._planner = planner
        self._replica_now = replica
        self._task: TaskClass = task
        self.max_branches = 0
        self._name = ""  # the replica's
        self._replica: ReplicaPlanner | None = None

    def plan(
        self, drafter: DrafterTraits | None, max_draft_tokens: int, *, is_ready: bool = True
    ) -> RoundPlan:
        """Plan a round that `drafter` would draft for; None: nobody ever would.

        Args:
            drafter: who drafts next.
            max_draft_tokens: what the round has room for.
            is_ready: whether a draft is to be had now.
        """
        if drafter is None:  # drafted for until now, maybe; others plan without it
            self.leave()
            self.newest = RoundPlan(0, self.run_on, reason="nobody drafts")
            return self.newest
        replica = self._join()
        self.ask(drafter, max_draft_tokens)
        self.newest = replica.plan(self, is_ready=is_ready)
        self._planner.stats.lengths[self.newest.num_draft_tokens] += 1
        return self.newest

    @property
    def is_awaited(self) -> bool:
        """True if the session goes on alone by a plan from before the others began to draft."""
        runs_on = self.newest.mode is Mode.PLAIN and not self.newest.is_control
        return runs_on and self._replica is not None and self._replica.is_drafting

    @property
    def is_gathering(self) -> bool:
        """True if a control round has begun that others on its replica have not reached."""
        return self._replica is not None and self._replica.control.is_gathering

    @property
    def is_probing(self) -> bool:
        """True if it is to make the next probe, once its drafter is ready."""
        return self._replica is not None and self._replica.prober is self

    @property
    def wants_drafter(self) -> bool:
        """True if a drafter is worth connecting to now.

        It costs a prefill, which is wasted if no session drafts.
        """
        return self._join().wants_drafter(self)

    @property
    def num_branches(self) -> int:
        """Outcomes of a verification that may be drafted after ahead of it; 0: not by plan."""
        return self.max_branches if self.is_ahead else 0

    @property
    def is_ahead(self) -> bool:
        """True if sessions on its replica that may have drafts made ahead have them."""
        return self._replica is None or self._replica.ahead.is_on

    def explain(self) -> Explanation:
        """Why its newest k is what it is."""
        replica, plan = self._replica, None
        if replica is not None:
            plan = replica.plans.get(Mode.DRAFTING)
        costs, num_tokens = self._planner.costs, self.newest.num_draft_tokens
        name = "" if self.drafter is None else self.drafter.name
        return Explanation(
            num_draft_tokens=num_tokens,
            reason=self.newest.reason,
            mode="" if replica is None else replica.mode.value,
            survival=self.survival(),
            min_survival=0.0 if plan is None else plan.min_survival,
            depth=0 if plan is None else plan.depth,
            num_sessions=0 if plan is None else len(plan.lengths),
            drafting_per_ms=0.0 if replica is None else replica.rate(Mode.DRAFTING),
            plain_per_ms=0.0 if replica is None else replica.rate(Mode.PLAIN),
            pass_ms=costs.pass_ms(1 + num_tokens),
            step_ms=costs.step_ms(name, 1 if replica is None else max(1, len(replica.sessions))),
        )

    def observe_pass(self, timing: Timing) -> None:
        """Take in how many sessions and rows were in a target pass."""
        if self._replica is not None:
            self._replica.observe_pass(timing)

    def observe_steps(self, drafter: DrafterTraits, timing: Timing) -> None:
        """Take in how many sessions were in the draft steps of a round."""
        if self._replica is not None:
            self._replica.observe_steps(drafter, timing)

    def observe_round(self, plan: RoundPlan, num_tokens: int, elapsed_ms: float) -> None:
        """Take in a whole round: its tokens, and its time without waits for the client."""
        if self.drafter is not None and (plan.num_draft_tokens > 0 or plan.is_missed):
            # A probe is one look, however far the target goes on alone behind it.
            num_looks = 1 if plan.mode is Mode.PLAIN else num_tokens
            num_missed = num_looks if plan.is_missed else 0
            self._estimates[self.drafter.name].observe_presence(num_missed)
        if self._replica is None or plan.mode is None:
            return
        self._replica.observe_round(self, plan, num_tokens, elapsed_ms)
        if self.max_branches > 0 and plan.mode is Mode.DRAFTING and plan.num_draft_tokens > 0:
            expected = 1.0 + sum(self.survival()[: plan.num_draft_tokens])
            self._replica.ahead.observe(expected, elapsed_ms, len(self._replica.sessions))
        if plan.is_typical:
            has_drafts = plan.mode is Mode.DRAFTING
            self._planner.gains.observe(self._task, num_tokens, elapsed_ms, has_drafts=has_drafts)

    def leave(self, num_tokens: int = 0) -> None:
        """End its part in the plans of others; its text is over if it has tokens. Idempotent."""
        if self._replica is not None:
            self._planner.leave(self, self._name, num_tokens)
            self._replica = None

    def _join(self) -> ReplicaPlanner:
        name = self._replica_now() or self._name or self._planner.newest
        if self._replica is None or name != self._name:
            self.leave()
            self._name = name
            self._replica = self._planner.replica(name)
            self._replica.join(self)
        return self._replica
