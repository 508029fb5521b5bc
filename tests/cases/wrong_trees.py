"""A deliberate mistake in how trees are verified, for tests that must see it."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import pytest

from models.engine import target
from models.sampling.draft_tree import DraftTree
from models.sampling.verification import accept_in_tree


def take_any_leaf(patch: pytest.MonkeyPatch) -> None:
    """Where a draft is rejected, the first token beside it is taken in its place."""

    def wrong(
        tree: DraftTree, drawn: Sequence[int], eos_ids: Collection[int]
    ) -> tuple[list[int], int]:
        rows, token = accept_in_tree(tree, drawn, eos_ids)
        leaves = [row for row in range(len(tree)) if tree.parents[row] == rows[-1] != row - 1]
        return ([*rows, leaves[0]], drawn[leaves[0]]) if leaves else (rows, token)

    patch.setattr(target, "accept_in_tree", wrong)
