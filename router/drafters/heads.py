"""Heads on the target, as a request may ask for them.

They draft in the target's own process for the rows that it computes alone. The router makes no
drafter for them: it says in its messages whether they may draft, and how many tokens.
"""

from __future__ import annotations

from collections.abc import Sequence

from models.heads.config import NAMES, TargetHeads
from models.protocol.errors import InvalidRequest
from router.limits import SpeculationLimits
from router.rounds import HEADS
from router.types import SpeculationSettings

HEADS_NAMES = (HEADS.name, *NAMES)  # in requests; the first is whatever is served


def names_heads(drafter: str | None) -> bool:
    """Whether a request that names this drafter asks for heads."""
    return drafter in HEADS_NAMES


def check_heads(
    wanted: SpeculationSettings, heads: TargetHeads | None, others: Sequence[str]
) -> None:
    """Check a request that names heads.

    Args:
        wanted: what it says.
        heads: those that are served; None: there are none.
        others: drafters that are served, by name.

    Raises:
        InvalidRequest: they are not served here, or do not draft as far.
    """
    served = () if heads is None else (heads.kind, HEADS.name)
    if heads is None or wanted.drafter not in served:
        raise InvalidRequest(
            f"speculation.drafter: must be one of {', '.join((*others, *served))} here, "
            f"got {wanted.drafter!r}",
            param="speculation.drafter",
        )
    if (k := wanted.num_speculative_tokens) is not None and k > heads.max_tokens:
        raise InvalidRequest(
            f"speculation.k: at most {heads.max_tokens} with drafter {wanted.drafter}: "
            f"there are so many heads here (got {k})",
            param="speculation.k",
        )


def own_length(
    wanted: SpeculationSettings, allowed: SpeculationLimits, fixed: int | None
) -> int | None:
    """Tokens of each draft that a target makes itself; 0: as many as pay; None: it makes none.

    Args:
        wanted: what the request says.
        allowed: the limits of the deployment.
        fixed: k of the session; None: it is chosen live.
    """
    if not (wanted.enabled and allowed.enabled):
        return None
    if names_heads(wanted.drafter):
        return None if fixed == 0 else fixed or 0
    return 0 if fixed is None and wanted.drafter is None else None
