"""Measures the time that whole rounds take beyond the engines' work."""

from __future__ import annotations

import math

from router.planning.joint import Costs, EngineTimes, Others, Work

_OVERHEAD_WEIGHT = 0.02  # of the newest round in a mode's mean; 0.2: mean share 0.962 (of 0.964)
_HALF_LIFE_S = 10.0  # of what rounds of a mode took beyond engines, while it has none


class Overhead:
    """The time of a mode's rounds beyond the engines' work.

    It contains links, queues, waits for others, and the router's own work. The router works for
    one session after the other. So a round of 8 sessions is expected to have twice that of 4. What
    engines take is not known well when the first rounds end. So whole rounds are kept, and the
    engines' part is taken off by what is known now.
    """

    def __init__(self) -> None:
        self._round_ms, self._work = 0.0, Work()
        self._newest_s = 0.0
        self.num_rounds = 0

    def observe(self, round_ms: float, work: Work, now_s: float) -> None:
        """Take in a round of such work, or the time of one of its tokens if nobody drafts."""
        self.num_rounds, self._newest_s = self.num_rounds + 1, now_s
        weight = max(_OVERHEAD_WEIGHT, 1.0 / self.num_rounds)
        self._round_ms += weight * (round_ms - self._round_ms)
        pairs = zip(self._work, work, strict=True)
        self._work = Work(*(mean + weight * (newest - mean) for mean, newest in pairs))

    def of(self, num_sessions: int, costs: Costs, others: Others, now_s: float) -> float:
        """Return the expected overhead of a round; 0.0 if nothing was measured.

        It is believed less while no rounds come. They may have been slow for another reason.
        """
        if self.num_rounds == 0:
            return 0.0
        work = self._work
        engines = EngineTimes(costs, others, work.num_sessions, work.num_drafting)
        overhead_ms = self._round_ms - engines.of(work.num_draft_rows, work.depth)
        believed = math.pow(0.5, (now_s - self._newest_s) / _HALF_LIFE_S)
        return believed * overhead_ms / work.num_sessions * num_sessions
