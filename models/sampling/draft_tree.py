"""A draft with several candidates for a place: which row of its verification follows which.

For example behind the token 7: 5 or 9, then 6 behind either, or 8 behind 9.

    row       0   1   2   3   4   5
    token     7   5   6   9   6   8
    parent   -1   0   1   0   3   3         paths: 0-1-2, 0-3-4, 0-3-5

Row 0 is the last one before the draft. Rows that follow the row before them are a segment. Here [0,
1, 2] is the first path, then [3, 4] and [5] leave it or one another.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class DraftTree:
    """The rows of a tree.

    Attributes:
        tokens: of each row.
        parents: the row before each in its path, an earlier one; -1 for row 0.
    """

    tokens: list[int]
    parents: list[int]

    def __len__(self) -> int:
        return len(self.tokens)

    @property
    def segments(self) -> list[range]:
        """Rows that follow one another, in order; the first are those of the first path."""
        starts = [row for row, parent in enumerate(self.parents) if parent != row - 1]
        starts = [0, *(row for row in starts if row)]
        return [range(a, b) for a, b in zip(starts, [*starts[1:], len(self)], strict=True)]

    @property
    def first_path(self) -> list[int]:
        """Tokens of the first path, behind that of row 0."""
        return self.tokens[1 : self.segments[0].stop]

    def path(self, row: int) -> list[int]:
        """Rows from 0 to this one."""
        rows = [row]
        while rows[-1] > 0:
            rows.append(self.parents[rows[-1]])
        return rows[::-1]

    def path_tokens(self, row: int) -> list[int]:
        """Tokens of the draft up to a row's, without that of row 0."""
        return [self.tokens[each] for each in self.path(row)[1:]]


def grow_tree(
    anchor: int, shape: Sequence[tuple[int, int]], candidates: Sequence[Sequence[int | None]]
) -> DraftTree:
    """Return the tree of a shape with these candidates; nodes whose candidate is None are left out.

    Args:
        anchor: the token of row 0.
        shape: of each node the node that it follows, -1: row 0, an earlier one, and its rank. Of
            one node's children those of lower ranks come first, in any order among others'.
        candidates: by place behind row 0 and rank.
    """
    children: dict[int, list[int]] = {}
    for node, (parent, _) in enumerate(shape):
        children.setdefault(parent, []).append(node)
    tokens, parents = [anchor], [-1]
    waiting = [(node, 0, 0) for node in reversed(children.get(-1, []))]
    while waiting:  # depth first, so that segments are long
        node, row_before, depth = waiting.pop()
        token = candidates[depth][shape[node][1]]
        if token is None:
            continue
        tokens.append(token)
        parents.append(row_before)
        row = len(tokens) - 1
        waiting += [(child, row, depth + 1) for child in reversed(children.get(node, []))]
    return DraftTree(tokens, parents)
