"""Measures the time that whole rounds take beyond the engines' work, and whole texts beyond it.

Both are of one mode of the sessions (`Past`), and are believed less while it is not in use. Else
no mode would be tried again that was slow once, maybe for another reason.
"""

from __future__ import annotations

import math

from router.planning.joint import Costs, EngineTimes, Others, Work

_OVERHEAD_WEIGHT = 0.02  # of the newest round in a mode's mean; 0.2: mean share 0.962 (of 0.964)
_HALF_LIFE_S = 10.0  # of what rounds or texts of a mode took beyond, while it has none
_LONGEST_HALF_LIFE_S = 80.0  # each try of the mode that was given up sooner doubles it, up to this
_TEXT_SHARE = 0.05  # of the newest text in the mean of a mode, once there are twenty
_MOST_LATE = 3.0  # times as promised: texts of 8 tokens are twice


class Belief:
    """The share of its measurements that a mode is judged by, while it is not in use.

    A mode that is tried and given up soon is tried again after twice the time. Each try costs, and
    would find what the last one found.
    """

    def __init__(self) -> None:
        self._half_life_s = _HALF_LIFE_S

    def note_use(self, lasted_s: float) -> None:
        """Note that the mode was in use for so long, until the other one promised more."""
        is_vain = lasted_s < _HALF_LIFE_S
        longer_s = min(2.0 * self._half_life_s, _LONGEST_HALF_LIFE_S)
        self._half_life_s = longer_s if is_vain else _HALF_LIFE_S

    def at(self, age_s: float) -> float:
        """Return the share for the newest measurement, which is so old."""
        return math.pow(0.5, age_s / self._half_life_s)


class Overhead:
    """The time of a mode's rounds beyond the engines' work.

    It contains links, queues, waits for others, and the router's own work. The router works for
    one session after the other. So a round of 8 sessions is expected to have twice that of 4. What
    engines take is not known well when the first rounds end. So whole rounds are kept, and the
    engines' part is taken off by what is known now.

    Args:
        belief: in the rounds of its mode.
    """

    def __init__(self, belief: Belief) -> None:
        self._belief = belief
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

    def of(
        self, num_sessions: int, costs: Costs, others: Others, now_s: float, usual_ms: float = 0.0
    ) -> float:
        """Return the expected overhead of a round; `usual_ms` if nothing was measured.

        The difference to that is believed less while no rounds come.
        """
        if self.num_rounds == 0:
            return usual_ms
        work = self._work
        engines = EngineTimes(costs, others, work.num_sessions, work.num_drafting)
        overhead_ms = self._round_ms - engines.of(work.num_draft_rows, work.depth)
        overhead_ms *= num_sessions / work.num_sessions
        return usual_ms + self._belief.at(now_s - self._newest_s) * (overhead_ms - usual_ms)


class Lateness:
    """The time of whole texts of a mode, behind their prompts, over what its rounds promise.

    It contains waits for a first draft and rounds that had none. The promise changes with the
    first rounds that are measured. So the rate of texts is kept: tokens per ms of a session.

    Args:
        belief: in the texts of its mode.
    """

    def __init__(self, belief: Belief) -> None:
        self._belief = belief
        self._rate, self._num_sessions, self._newest_s = 0.0, 1.0, 0.0
        self._num_texts = 0.0

    def observe(self, num_tokens: int, text_ms: float, num_sessions: int, now_s: float) -> None:
        """Take in a text that was one of `num_sessions` at a time."""
        self._num_texts = self._num_texts * self._belief.at(now_s - self._newest_s) + 1.0
        self._newest_s = now_s
        weight = max(_TEXT_SHARE, 1.0 / self._num_texts)
        self._rate += weight * (num_tokens / max(text_ms, 1e-9) - self._rate)
        self._num_sessions += weight * (num_sessions - self._num_sessions)

    def of(self, promised_rate: float, num_sessions: int, now_s: float) -> float:
        """Return it for rounds that promise a session so many tokens per ms; 1.0: not known.

        It is believed less while no texts come, and says nothing of other numbers of sessions.
        """
        few, many = sorted((self._num_sessions, num_sessions))
        if self._num_texts == 0.0 or many >= 2 * few:
            return 1.0
        lateness = promised_rate / max(self._rate, 1e-9)
        believed = self._belief.at(now_s - self._newest_s)
        return 1.0 + believed * (min(max(lateness, 1.0), _MOST_LATE) - 1.0)


class Past:
    """All that was measured of one mode: its rounds and its texts."""

    def __init__(self) -> None:
        self._belief = Belief()
        self.rounds = Overhead(self._belief)
        self.texts = Lateness(self._belief)
        self._began_s: float | None = None  # None: nobody chose it yet

    def begin_use(self, now_s: float) -> None:
        """Note that the mode is in use."""
        self._began_s = now_s

    def end_use(self, now_s: float) -> None:
        """Note that the other mode is in use, because it promises more."""
        if self._began_s is not None:
            self._belief.note_use(now_s - self._began_s)
