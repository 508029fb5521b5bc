"""All that a simulated cluster shares: time, dice, the trace, and links that fail.

Everything random is drawn from one generator and everything waits in one event loop with virtual
time. So a seed has one trace. Messages go through the links' own codecs.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from deployments.link.frames import FrameCodec
from models.protocol.messages import (
    ConstraintReply,
    ConstraintRequest,
    EngineReply,
    EngineRequest,
)

_NET_S = 0.0005
_LATE_S = 0.02
_VERY_LATE_S = 4.0  # later than a message is sent again, than waits end
_CODECS: dict[str, FrameCodec[Any]] = {
    name: FrameCodec(kind)
    for name, kind in (
        ("engine request", EngineRequest),
        ("engine reply", EngineReply),
        ("constraint request", ConstraintRequest),
        ("constraint reply", ConstraintReply),
    )
}


@dataclass(frozen=True, slots=True)
class FaultRates:
    """Shares of messages, of leases and of their ends, 0 to 1."""

    lose: float = 0.0
    double: float = 0.0
    delay: float = 0.0
    refuse: float = 0.0  # leases
    forget: float = 0.0  # ends of leases that do not arrive

    @classmethod
    def drawn(cls, rng: random.Random) -> FaultRates:
        """Rates under which requests mostly still end."""
        if rng.random() < 0.3:
            return cls()
        return cls(
            lose=rng.choice((0.0, 0.02, 0.08)),
            double=rng.choice((0.0, 0.05, 0.2)),
            delay=rng.choice((0.0, 0.05, 0.2)),
            refuse=rng.choice((0.0, 0.1)),
            forget=rng.choice((0.0, 0.1)),
        )


class Network:
    """Time, dice, trace and links of one schedule; made within its event loop."""

    def __init__(self, rng: random.Random, rates: FaultRates) -> None:
        self.rng = rng
        self.rates = rates
        self.counts: Counter[str] = Counter()
        self.trace: list[str] = []
        # Losses that a session may have had by what befell replicas, by kind, links apart.
        self.num_losses: Counter[str] = Counter()
        # Leases of a kind that a session got, less those that the replica ended itself.
        self.num_granted: Counter[tuple[str, str]] = Counter()
        self._loop = asyncio.get_running_loop()
        self._began_s = self._loop.time()

    def now(self) -> float:
        """Return the seconds since the schedule began."""
        return self._loop.time() - self._began_s

    def note(self, what: str) -> None:
        """Add a line to the trace."""
        self.trace.append(f"{self.now():.4f} {what}")

    def explains(self, kind: str, num_losses: int) -> bool:
        """Return whether a session can have lost so many replicas of a kind; "": of any."""
        rates, lost = self.rates, self.num_losses
        num_lost = lost[kind] if kind else lost["target"] + lost["constraint"]
        return any((rates.lose, rates.delay, rates.refuse)) or num_lost >= num_losses

    def happens(self, what: str, share: float) -> bool:
        """Return whether a fault strikes now."""
        is_struck = share > 0.0 and self.rng.random() < share
        self.counts[what] += is_struck
        return is_struck

    def later(self, delay_s: float, action: Callable[..., None], *words: Any) -> None:
        """Have `action` happen after a while."""
        self._loop.call_later(delay_s, action, *words)

    def carry(self, way: str, kind: str, message: Any, deliver: Callable[[Any], None]) -> None:
        """Carry a message; it is lost, doubled, late or overtaken as the rates say."""
        codec = _CODECS[kind]
        num_copies = 1 + self.happens("doubled", self.rates.double)
        if self.happens("lost", self.rates.lose):
            num_copies = 0
        what = type(message).__name__
        seq = getattr(message, "seq", getattr(message, "ticket", ""))
        self.note(f"{way}: {what} {message.session_id} {seq} x{num_copies}")
        for _ in range(num_copies):
            delay_s = self.rng.uniform(0.5, 1.5) * _NET_S
            if self.happens("late", self.rates.delay):
                longest_s = _VERY_LATE_S if self.rng.random() < 0.1 else _LATE_S
                delay_s += self.rng.uniform(0.0, longest_s)
            for frame in codec.encode([message]):
                for copy in codec.decode(frame):
                    self.later(delay_s, deliver, copy)
