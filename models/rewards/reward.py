"""The interface of a reward, which scores a text that is not yet whole.

A factory, a callable of one mapping, makes a reward of a request's parameters. Our factories are in
`registry.py`, and users' own come by the entry point `outrider.rewards`. It is computed in a
process of its own that ends at limits of time and memory (`deployments/constraint/rewards`). It
never runs in a process that holds a model or a session.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from pydantic import BaseModel, ConfigDict


@dataclass(frozen=True, slots=True)
class Scored:
    """The score of a text.

    Args:
        score: how well its constraint is met so far, from 0 to 1 (soft satisfaction).
        is_met: whether the constraint is met, were this the whole text (hard satisfaction).
        can_be_met: whether some text that goes on from here can still meet it.
    """

    score: float
    is_met: bool
    can_be_met: bool = True


class Reward(Protocol):
    """Scores texts. Must be a function of its arguments: a seed's text depends on it."""

    def score(self, text: str, lookahead: str, is_end: bool) -> Scored:
        """Score `text` with `lookahead` behind it.

        Args:
            text: what is written already, which nothing changes any more.
            lookahead: what may be written next; its last word may be cut.
            is_end: whether nothing can follow it.
        """
        ...


Factory = Callable[[Mapping[str, Any]], Reward]  # takes the parameters; ValueError: they are wrong


class RewardFields(BaseModel):
    """Base of rewards that are their own parameters: strict types, no unknown ones."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, protected_namespaces=())
