"""A list of choices as a tree of tokens, with the target's probability of each step.

    [a b] [a c] [a c d] [e]        root - a - b
                                        |   ` - c - d
                                        ` - e

The row of a node's token gives the probability of each child. If a choice ends there, it also gives
that of the end of the text. The root's row is that of the last token before the choices. Every leaf
is a branch: the tokens from the root to it. A branch gives the rows that no branch before it gives.
Plain ints and floats; knows no tensors.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple


@dataclass(frozen=True, slots=True)
class Branch:
    """The way to one leaf. `nodes` are of its last tokens: those whose rows it gives."""

    tokens: Sequence[int]
    nodes: Sequence[int]


class Step(NamedTuple):
    """One node's row looks at these: a token that may follow, or the end of the text (None)."""

    node: int
    token: int | None


class ChoiceTree:
    """The tree of some choices, none of them empty; node 0 is the root.

    Args:
        choices: their tokens.
    """

    def __init__(self, choices: Sequence[Sequence[int]]) -> None:
        self._choices = choices
        self._children: list[dict[int, int]] = [{}]
        paths = [self._add(choice) for choice in choices]
        self._ends = {path[-1] for path in paths}
        self._logprobs: dict[Step, float] = {}
        self.branches = self._cut(paths)

    def __len__(self) -> int:
        """Return the number of choices."""
        return len(self._choices)

    def steps(self, node: int) -> list[Step]:
        """Return the steps that the node's row must give."""
        steps = [Step(node, token) for token in self._children[node]]
        return [*steps, Step(node, None)] if node in self._ends else steps

    def note(self, step: Step, logprob: float) -> None:
        """Take in the log-probability of a step."""
        self._logprobs[step] = logprob

    def path(self, choice: int) -> list[Step]:
        """Return the steps of a choice, its end last."""
        node, steps = 0, []
        for token in self._choices[choice]:
            steps.append(Step(node, token))
            node = self._children[node][token]
        return [*steps, Step(node, None)]

    def logprob(self, choice: int) -> float:
        """Return the log-probability of a choice; all its steps have been noted."""
        return math.fsum(self._logprobs[step] for step in self.path(choice))

    def _add(self, choice: Sequence[int]) -> list[int]:
        """Add the choice; its nodes without the root."""
        node, nodes = 0, []
        for token in choice:
            following = self._children[node].setdefault(token, len(self._children))
            if following == len(self._children):
                self._children.append({})
            node = following
            nodes.append(node)
        return nodes

    def _cut(self, paths: Sequence[Sequence[int]]) -> list[Branch]:
        branches: list[Branch] = []
        given: set[int] = set()
        for choice, path in zip(self._choices, paths, strict=True):
            if self._children[path[-1]]:  # others go on from here, and pass all of it
                continue
            new = [node for node in path if node not in given]
            if new:
                given.update(new)
                branches.append(Branch(choice, new))
        return branches
