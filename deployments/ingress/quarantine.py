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
from deployments.serve.timed_names import TimedNames
from models.protocol.errors import ReplicasLost
from router.types import GenerationRequest

logger = logging.getLogger("ray.serve")

QUARANTINE_S = 180.0


class Quarantine:
    """Refuses what has just ended with `ReplicasLost`, for `QUARANTINE_S`.

    Args:
        clock: seconds, monotonic.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._kept = TimedNames(QUARANTINE_S, clock)  # by their fingerprints

    def sink(self, request: GenerationRequest) -> Sink:
        """Return the sink that watches how a request ends.

        Raises:
            ReplicasLost: the same was asked before, and is refused for now.
        """
        kept = self._kept.names()
        # Seldom: a long prompt is hashed only where there is something to find.
        left_s = kept.get(_fingerprint(request), 0.0) if kept else 0.0
        if left_s > 0.0:
            refusal = ReplicasLost(
                "this request was with too many replicas when they were lost; this router refuses "
                f"it for another {left_s:.0f} s",
                code="quarantined",
            )
            refusal.retry_after_s = left_s
            raise refusal
        return _Watching(self, request)

    def keep(self, request: GenerationRequest) -> None:
        """Refuse the same from now on."""
        self._kept.add(_fingerprint(request))
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


def _fingerprint(request: GenerationRequest) -> str:
    """Hash what shapes the work: a retry may have another seed, and another length."""
    digest = hashlib.blake2b(array("q", request.prompt_ids).tobytes(), digest_size=16)
    digest.update(repr((request.grammar, request.choices)).encode())
    return digest.hexdigest()
