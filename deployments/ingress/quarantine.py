"""Refuses for some minutes what was with too many lost replicas: a retry must not lose more.

Clients send again what ended with 503, and what brings down a target would do so each time. Streams
that were beside it at every loss are refused as well: nothing tells them apart. Each router
remembers its own. Probes of health do not pass here.
"""

from __future__ import annotations

import hashlib
import logging
import time
from array import array
from collections.abc import Callable

from deployments.api.observer import Sink
from models.protocol.errors import ReplicasLost
from router.types import GenerationRequest

logger = logging.getLogger("ray.serve")

QUARANTINE_S = 180.0
_MAX_KEPT = 1024


class Quarantine:
    """Refuses what has just ended with `ReplicasLost`, for `QUARANTINE_S`.

    Args:
        clock: seconds, monotonic.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._ends_s: dict[bytes, float] = {}  # when each is over, the oldest first

    def sink(self, request: GenerationRequest) -> Sink:
        """Return the sink that watches how a request ends.

        Raises:
            ReplicasLost: the same was asked before, and is refused for now.
        """
        if self._ends_s:  # seldom: a long prompt is hashed only where there is something to find
            self._check(_fingerprint(request))
        return _Watching(self, request)

    def _check(self, fingerprint: bytes) -> None:
        left_s = self._ends_s.get(fingerprint, 0.0) - self._clock()
        if left_s > 0.0:
            refusal = ReplicasLost(
                "this request was with too many replicas when they were lost; this router refuses "
                f"it for another {left_s:.0f} s",
                code="quarantined",
            )
            refusal.retry_after_s = left_s
            raise refusal

    def keep(self, request: GenerationRequest) -> None:
        """Refuse the same from now on."""
        now_s = self._clock()
        self._ends_s = {key: end_s for key, end_s in self._ends_s.items() if end_s > now_s}
        if len(self._ends_s) >= _MAX_KEPT:
            del self._ends_s[next(iter(self._ends_s))]
        self._ends_s[_fingerprint(request)] = now_s + QUARANTINE_S
        logger.error(
            "session %s lost as many replicas as it may; the same is refused for %g s",
            *(request.request_id, QUARANTINE_S),
            extra={"session_id": request.request_id},
        )


class _Watching(Sink):
    """Has a request kept that ends because it lost too many replicas."""

    def __init__(self, quarantine: Quarantine, request: GenerationRequest) -> None:
        self._quarantine, self._request = quarantine, request

    def failed(self, choice: int, code: str) -> None:
        if code == ReplicasLost.code:
            self._quarantine.keep(self._request)


def _fingerprint(request: GenerationRequest) -> bytes:
    """Hash what shapes the work: a retry may have another seed, and another length."""
    digest = hashlib.blake2b(array("q", request.prompt_ids).tobytes(), digest_size=16)
    digest.update(repr((request.grammar, request.choices)).encode())
    return digest.digest()
