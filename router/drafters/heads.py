"""Heads on the target, as a request may ask for them.

They draft in the target's own process for the rows that it computes alone. The router makes no
drafter for them: it says in its messages whether they may draft, and how many tokens.
"""

from __future__ import annotations

from collections.abc import Sequence

from models.heads.config import EARLY_EXIT, NAMES, TargetHeads
from models.protocol.errors import InvalidRequest
from router.limits import SpeculationLimits
from router.rounds import HEADS
from router.types import SpeculationSettings

HEADS_NAMES = (HEADS.name, *NAMES)  # in requests; the first is whatever is served


def names_heads(drafter: str | None) -> bool:
    """Return whether a request that names this drafter asks for heads."""
    return drafter in HEADS_NAMES


def heads_alone(wanted: SpeculationSettings, allowed: SpeculationLimits) -> bool:
    """Return whether only the target itself drafts.

    The request decides, else the deployment.
    """
    return names_heads(wanted.drafter or allowed.method)


def check_method(method: str | None, heads: str | None, early_exit: int | None) -> None:
    """Check that a deployment whose method names heads has some; of which kind their folder says.

    Raises:
        ValueError: it has none.
    """
    is_exit = method == EARLY_EXIT
    has_some = early_exit is not None if is_exit else heads is not None
    if not has_some and not (method == HEADS.name and early_exit is not None):
        needed = "target.early_exit" if is_exit else "target.heads"
        raise ValueError(f"router.speculation.method {method} needs {needed}")


def check_heads(
    wanted: SpeculationSettings, heads: TargetHeads | None, others: Sequence[str]
) -> None:
    """Check a request whose drafts are those of heads alone.

    Args:
        wanted: what it says; without a drafter the deployment's method names them.
        heads: those that are served; None: there are none.
        others: drafters that are served, by name.

    Raises:
        InvalidRequest: they are not served here, or do not draft as far.
    """
    served = () if heads is None else (heads.kind, HEADS.name)
    if heads is None or wanted.drafter not in (None, *served):
        raise InvalidRequest(
            f"speculation.drafter: must be one of {', '.join((*others, *served))} here, "
            f"got {wanted.drafter!r}",
            param="speculation.drafter",
        )
    if (k := wanted.num_speculative_tokens) is not None and k > heads.max_tokens:
        raise InvalidRequest(
            f"speculation.k: at most {heads.max_tokens} with drafter {heads.kind}: "
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
    if heads_alone(wanted, allowed):
        return None if fixed == 0 else fixed or 0
    return 0 if fixed is None and wanted.drafter is None else None
