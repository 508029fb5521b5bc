"""Ways to generate the same answers: what an experiment compares."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

PLAIN, ADAPTIVE = "k=0", "adaptive"


@dataclass(frozen=True, kw_only=True)
class Way:
    """One way to generate answers.

    Attributes:
        k: draft tokens of a round; 0: plain decoding, None: chosen live.
        drafter: the only drafter of its requests, by its name in requests; None: any.
        drafts: draft models that the router sees, by the names of their pools; None: all.
        speculation: fields of `router.speculation`.
        target, draft: fields of the section `target`, and of every draft model's: heads,
            quantization.
        is_constrained: answers are held to the schemas of their requests.
        is_pinned: `k` is pinned inside the planner's machinery, which shows what planning costs.
        stages: the only stages where it is run; empty: all.
        texts: ways with the same word here must write the same texts; empty: no comparison.
        like: a way with the same weights, whose texts other arithmetic may part from these: the
            record has the share of them that is alike.
        at: the stage that runs this way, beside the others of the cell; empty: the cell's.
    """

    k: int | None = None
    drafter: str | None = None
    drafts: tuple[str, ...] | None = None
    speculation: Mapping[str, Any] = field(default_factory=dict)
    target: Mapping[str, Any] = field(default_factory=dict)
    draft: Mapping[str, Any] = field(default_factory=dict)
    is_constrained: bool = True
    is_pinned: bool = False
    stages: tuple[str, ...] = ()
    texts: str = "all"
    like: str = ""
    at: str = ""

    def sees(self, pool: str) -> bool:
        """Return whether the router sees the pool of draft models of this name."""
        return self.drafts is None or pool in self.drafts


def name_of(k: int | None) -> str:
    """Return the name of a way to choose k."""
    return ADAPTIVE if k is None else f"k={k}"


def by_k(ks: Sequence[int], **fields: Any) -> dict[str, Way]:
    """Return plain decoding, each k, and k chosen live, by name."""
    return {name_of(k): Way(k=k, **fields) for k in (0, *ks, None)}


def pinned(*ks: int) -> dict[str, Way]:
    """Return each k pinned inside the planner's machinery, by name; a service makes its planner."""
    return {f"pinned k={k}": Way(k=k, is_pinned=True, stages=("engine", "link")) for k in ks}
