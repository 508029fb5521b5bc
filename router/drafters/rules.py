"""Rules that a person sets for when not to draft; where none says so, the planner decides.

Two rules look at the request and hold for all of its text: its temperature and its `max_tokens`.
The third looks at the sessions that run on its target, anew with each round. A round that a rule
takes the drafts from is a plain one, as with `enabled: false`. It has no draft model, no copied or
forced text, no drafts of the target's own.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import contextmanager

from models.protocol.rules import RULES
from router.limits import SpeculationLimits
from router.types import GenerationRequest


def why_never(request: GenerationRequest, allowed: SpeculationLimits) -> str:
    """Why a rule keeps a request from all drafts, in a few words; "": none does."""
    highest, least = allowed.disable_above_temperature, allowed.disable_below_max_tokens
    temperature = request.sampling.temperature
    if highest is not None and temperature > highest:
        return f"off: temperature {temperature:g} above {highest:g}"
    if request.max_tokens < least:
        return f"off: max_tokens {request.max_tokens} below {least}"
    return ""


def max_batch_size(request: GenerationRequest, allowed: SpeculationLimits) -> int:
    """Sessions on a target beyond which a request has no drafts: the lower of both; 0: no rule."""
    asked, limit = request.speculation.disable_by_batch_size, allowed.disable_by_batch_size
    return min(asked, limit) if asked and limit else asked or limit


def max_branches(request: GenerationRequest, allowed: SpeculationLimits) -> int:
    """Outcomes of a verification that a draft model may draft after ahead of it.

    None under a grammar, whose masks follow the text, and under a rule that looks at the draft.
    """
    depends_on_draft = RULES[request.sampling.verification].depends_on_draft
    is_free = request.grammar is None and not depends_on_draft
    return allowed.draft_ahead if is_free else 0


class LiveSessions:
    """The sessions of one router by the target replica that they are on."""

    def __init__(self) -> None:
        self._replicas: dict[object, Callable[[], str]] = {}

    @contextmanager
    def joined(self, replica: Callable[[], str]) -> Generator[None, None, None]:
        """Count a session within the block; `replica` names its target, "" before it has one."""
        key = object()
        self._replicas[key] = replica
        try:
            yield
        finally:
            del self._replicas[key]

    def num_on(self, replica: str) -> int:
        """Sessions on a replica; those that have none yet count too.

        "" stands for the replica with the fewest: a session without one most likely gets it.
        """
        counts: dict[str, int] = {}
        for now in self._replicas.values():
            counts[now()] = counts.get(now(), 0) + 1
        num_waiting = counts.pop("", 0)
        others = counts.get(replica, 0) if replica else min(counts.values(), default=0)
        return num_waiting + others


class DraftRules:
    """The rules for drafts in one session's next round.

    Args:
        never: see `why_never`.
        max_batch: see `max_batch_size`.
        num_sessions: that run on the session's target now, itself among them.

    Attributes:
        is_off: whether they took the drafts from the newest round.
    """

    def __init__(
        self, never: str = "", max_batch: int = 0, num_sessions: Callable[[], int] = lambda: 1
    ) -> None:
        self._never = never
        self._max_batch = max_batch
        self._num_sessions = num_sessions
        self.is_off = False

    def next_round(self) -> str:
        """Why the round that begins is to have no drafts, in a few words; "": it may have some."""
        off = self.why_off()
        self.is_off = bool(off)
        return off

    def why_off(self) -> str:
        """Why a round that began now would have none."""
        if self._never or not self._max_batch:
            return self._never
        num_sessions = self._num_sessions()
        if num_sessions > self._max_batch:
            return f"off: batch size {num_sessions} above {self._max_batch}"
        return ""
