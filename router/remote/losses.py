"""Records the losses of a router's sessions: of which part, why, and how long it was away.

Each part (target, draft, constraint) has one record, that all sessions of the router share. The
replica that was lost is told to `on_lost`, so that the next lease goes elsewhere.
"""

from __future__ import annotations

import random
import time
from collections import Counter, deque
from collections.abc import Callable

from models.backoff import Chance, jittered
from models.protocol.errors import LinkLost, LossReason

_MAX_PAUSES = 1024  # that wait to be published
_LEAST_S, _MOST_S = 1.0, 60.0  # that a client is told to stay away


class PartLosses:
    """The losses of one part.

    Args:
        on_lost: is told the name of each replica that is lost, "" for one without.
        clock: seconds, monotonic.
        chance: of jitter.
    """

    def __init__(
        self,
        on_lost: Callable[[str], None] = lambda replica: None,
        clock: Callable[[], float] = time.monotonic,
        chance: Chance = random.random,
    ) -> None:
        self._on_lost = on_lost
        self._clock = clock
        self._chance = chance
        self._away_since_s: float | None = None  # when it was lost, while no session has an answer
        self._usual_s = 0.0  # that it is away; 0: not known
        self.num_lost: Counter[LossReason] = Counter()  # leases, each a session's
        self.num_replaced = 0  # that a session got another for
        self.new_pauses: deque[float] = deque(maxlen=_MAX_PAUSES)  # seconds, of those replaced

    def note(self, replica: str, error: LinkLost) -> None:
        """Note that a session has lost its lease on a replica."""
        self.num_lost[error.reason] += 1
        if error.reason != "ended":
            self._note_away()
            self._on_lost(replica)

    def note_answer(self) -> None:
        """Note that a session has an answer: the part is there."""
        if self._away_since_s is None:
            return
        away_s = self._clock() - self._away_since_s
        self._away_since_s = None
        if away_s >= _LEAST_S:  # else another replica was there
            self._usual_s = (self._usual_s + away_s) / 2 if self._usual_s else away_s

    def retry_after_s(self) -> float:
        """Return when a client should come back that found nobody, with jitter.

        That is when the part is usually back. Where that is over or not known, the wait goes on
        for as long as it has lasted.
        """
        away_s = self._clock() - self._note_away()
        left_s = self._usual_s - away_s if self._usual_s > away_s else away_s
        return jittered(min(max(left_s, _LEAST_S), _MOST_S), self._chance)

    def _note_away(self) -> float:
        if self._away_since_s is None:
            self._away_since_s = self._clock()
        return self._away_since_s

    def note_replaced(self, pause_s: float) -> None:
        """Note that a session goes on, so long after it had lost its replica."""
        self.num_replaced += 1
        self.new_pauses.append(pause_s)


class Losses:
    """The losses of all parts, by the part's name.

    Attributes:
        on_lost: see `PartLosses`; may be set later.
    """

    def __init__(self) -> None:
        self.on_lost: Callable[[str], None] = lambda replica: None
        self.target, self.draft, self.constraint = (PartLosses(self._tell) for _ in range(3))

    def of(self, *, is_target: bool) -> PartLosses:
        """Return those of the target, or of draft models."""
        return self.target if is_target else self.draft

    def by_part(self) -> dict[str, PartLosses]:
        """Return them by their names in metrics."""
        return {"target": self.target, "draft": self.draft, "constraint": self.constraint}

    def _tell(self, replica: str) -> None:
        self.on_lost(replica)
