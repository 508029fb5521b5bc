"""The load of others on the same engines, estimated from what passes and draft steps report."""

from __future__ import annotations

from collections.abc import Iterable

from models.protocol.messages import Timing
from router.planning.joint import Others

_SMOOTHING = 0.05  # a running mean over about 20 passes: a second or so, as long as loads last
_MOST_ROWS = 4  # for each session of others: a draft of 3 and the anchor; a prompt is left out


class OthersEstimate:
    """Running means of who is in passes and draft steps, others and us."""

    def __init__(self) -> None:
        self._sessions = self._rows = 0.0
        self._drafting: dict[str, float] = {}  # by drafter
        self._our_share = 1.0

    def observe_pass(self, timing: Timing, own_sessions: int, own_rows: int) -> None:
        """Take in a target pass, in which `own_sessions` of ours had `own_rows`."""
        others = max(0, timing.num_sessions - own_sessions)
        # A prompt's rows are no lasting load: a few rows for each session is.
        rows = min(max(0, timing.num_rows - own_rows), _MOST_ROWS * others)
        self._sessions += _SMOOTHING * (others - self._sessions)
        self._rows += _SMOOTHING * (rows - self._rows)

    def observe_steps(self, name: str, timing: Timing, own_drafting: int) -> None:
        """Take in steps of the drafter `name`, in which `own_drafting` of ours were."""
        others = self._drafting.get(name, 0.0)
        self._drafting[name] = others + _SMOOTHING * (timing.num_sessions - own_drafting - others)

    def observe_share(self, timing: Timing, own_sessions: int) -> None:
        """Take in how many of our sessions, which all draft, a pass brought together."""
        share = max(1.0, timing.num_sessions - self._sessions) / own_sessions
        self._our_share += _SMOOTHING * (min(share, 1.0) - self._our_share)

    def now(self, names: Iterable[str]) -> Others:
        """Return the load for a round that the drafters `names` draft for.

        It is that of the busiest one.
        """
        drafting = [self._drafting[name] for name in names if name in self._drafting]
        return Others(self._sessions, self._rows, max(drafting, default=0.0), self._our_share)
