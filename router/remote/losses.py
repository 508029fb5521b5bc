"""Records the losses of a router's sessions: of which part, why, and how long it was away.

Each part (target, draft, constraint) has one record, that all sessions of the router share. The
replica that was lost is told to `on_lost`, so that the next lease goes elsewhere. The names of the
replicas that serve a session are kept while somebody follows it.
"""

from __future__ import annotations

import random
import time
from collections import Counter, deque
from collections.abc import Callable, Mapping
from functools import partial

from models.backoff import Chance, jittered
from models.protocol.errors import LinkLost, LossReason

_MAX_PAUSES = 1024  # that wait to be published
_LEAST_S, _MOST_S = 1.0, 60.0  # that a client is told to stay away


class PartLosses:
    """The losses of one part.

    Args:
        note_lease: is told which session has a lease on which replica.
        on_lost: is told the name of each replica that is lost, "" for one without.
        clock: seconds, monotonic.
        chance: of jitter.
    """

    def __init__(
        self,
        on_lost: Callable[[str], None] = lambda replica: None,
        note_lease: Callable[[str, str], None] = lambda session_id, replica: None,
        clock: Callable[[], float] = time.monotonic,
        chance: Chance = random.random,
    ) -> None:
        self._on_lost = on_lost
        self.note_lease = note_lease
        self._clock = clock
        self._chance = chance
        self._away_since_s: float | None = None  # when it was lost, while no session has an answer
        self._usual_s = 0.0  # that it is away; 0: not known
        self.num_lost: Counter[LossReason] = Counter()  # leases, each a session's
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
        self.new_pauses.append(pause_s)


class Losses:
    """The losses of all parts, by the part's name.

    Attributes:
        on_lost: see `PartLosses`; may be set later.
    """

    def __init__(self) -> None:
        self.on_lost: Callable[[str], None] = lambda replica: None
        self._serving: dict[str, dict[str, str]] = {}  # by session, then by part
        self.target, self.draft, self.constraint = (
            PartLosses(self._tell, partial(self._note_lease, part))
            for part in ("target", "draft", "constraint")
        )

    def follow(self, session_id: str) -> Mapping[str, str]:
        """Return the replicas of a session by part, as they will be; `forget` it in the end."""
        return self._serving.setdefault(session_id, {})

    def forget(self, session_id: str) -> None:
        """Follow a session no longer. Idempotent."""
        self._serving.pop(session_id, None)

    def of(self, *, is_target: bool) -> PartLosses:
        """Return those of the target, or of draft models."""
        return self.target if is_target else self.draft

    def by_part(self) -> dict[str, PartLosses]:
        """Return them by their names in metrics."""
        return {"target": self.target, "draft": self.draft, "constraint": self.constraint}

    def _note_lease(self, part: str, session_id: str, replica: str) -> None:
        serving = self._serving.get(session_id)
        if serving is not None and replica:
            serving[part] = replica

    def _tell(self, replica: str) -> None:
        self.on_lost(replica)
