"""The replica that texts of one beginning go to, the same for all routers, and when it is too full.

Rendezvous hashing (Thaler and Ravishankar 1998): a key has the replica whose hash with it is the
highest. Routers agree without a word, and a replica that comes or goes moves only its own share of
the keys. Loads are bounded (Mirrokni and others, arXiv 1608.01350). A replica that is fuller than
others by more than a share gets no more for a key's sake.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

# A cached prompt saves its prefill once, a fuller batch slows each of its tokens. So the bound is
# tight, and the first few sessions, whose passes cost the same together, do not count.
MAX_EXCESS = 0.25
FEW_SESSIONS = 4
READY_S = "ready_s"  # in the metadata of a replica of two, of which the later is a spare


def nearest(prefix_key: str, replicas: Iterable[str]) -> str:
    """Return the name of the replica that a key prefers; "" where there is none."""
    return max(replicas, key=lambda name: _weight(prefix_key, name), default="")


def has_room(load: int, least_other: int) -> bool:
    """Return whether a replica with so many sessions takes one more for the sake of its cache.

    `least_other` is the load of the emptiest other one.
    """
    return load < least_other + max(FEW_SESSIONS, MAX_EXCESS * least_other)


def _weight(prefix_key: str, replica: str) -> bytes:
    return hashlib.blake2b(f"{prefix_key} {replica}".encode(), digest_size=8).digest()
