"""Trees of draft tokens: their rows, and what of them is accepted."""

from __future__ import annotations

import random

import pytest

from models.sampling.draft_tree import DraftTree, grow_tree
from models.sampling.verification import Acceptance, accept_in_tree, accept_matching

EOS = 99
TREE = DraftTree([7, 5, 6, 9, 6, 8], [-1, 0, 1, 0, 3, 3])


def test_segments_and_paths() -> None:
    assert TREE.segments == [range(3), range(3, 5), range(5, 6)]
    assert TREE.first_path == [5, 6]
    assert TREE.path(4) == [0, 3, 4]
    assert TREE.path_tokens(5) == [9, 8]
    assert DraftTree([7], [-1]).segments == [range(1)]
    assert DraftTree([7], [-1]).first_path == []


@pytest.mark.parametrize(
    ("drawn", "expected"),
    [
        pytest.param([5, 6, 1, 0, 0, 0], ([0, 1, 2], 1), id="first path"),
        pytest.param([9, 6, 1, 8, 0, 4], ([0, 3, 5], 4), id="side path"),
        pytest.param([9, 0, 0, 5, 0, 0], ([0, 3], 5), id="leaves within"),
        pytest.param([1, 6, 2, 8, 3, 4], ([0], 1), id="nothing"),
        pytest.param([5, EOS, 0, 0, 0, 0], ([0, 1], EOS), id="end"),
    ],
)
def test_accept_in_tree(drawn: list[int], expected: tuple[list[int], int]) -> None:
    assert accept_in_tree(TREE, drawn, {EOS}) == expected


def test_a_drafted_end_is_the_last_token() -> None:
    tree = DraftTree([7, EOS, 5, 6], [-1, 0, 1, 0])
    assert accept_in_tree(tree, [EOS, 5, 1, 1], {EOS}) == ([0], EOS)


@pytest.mark.parametrize("seed", range(200))
def test_it_is_the_best_of_all_paths_as_chains(seed: int) -> None:
    choose = random.Random(seed)
    num_rows = choose.randint(1, 9)
    parents = [-1, *(choose.randrange(row) for row in range(1, num_rows))]
    tree = DraftTree([choose.randrange(3) for _ in range(num_rows)], parents)
    drawn = [choose.choice([0, 1, 2, EOS]) for _ in range(num_rows)]
    paths = [tree.path(row) for row in range(num_rows)]
    # Equal tokens behind one row are one text, of which the target says one thing.
    for path in paths:
        for other in paths:
            if tree.path_tokens(path[-1]) == tree.path_tokens(other[-1]):
                drawn[other[-1]] = drawn[path[-1]]
    rows, token = accept_in_tree(tree, drawn, {EOS})
    chains = [
        accept_matching(tree.path_tokens(path[-1]), [drawn[row] for row in path], {EOS})
        for path in paths
    ]
    found = Acceptance(len(rows) - 1, token)
    assert found in chains
    if len({(tree.parents[row], tree.tokens[row]) for row in range(1, num_rows)}) == num_rows - 1:
        assert found == max(chains, key=lambda chain: chain.num_accepted)


def test_a_shape_becomes_a_tree_of_its_candidates() -> None:
    shape = [(-1, 0), (0, 0), (-1, 1), (1, 0), (0, 1), (2, 0)]
    tree = grow_tree(7, shape, [[5, 9], [6, 8], [4, 3]])
    assert tree == DraftTree([7, 5, 6, 4, 8, 9, 6], [-1, 0, 1, 2, 1, 0, 5])
    assert tree.segments == [range(4), range(4, 5), range(5, 7)]
    cut = grow_tree(7, shape, [[None, 9], [6, 8], [4, 3]])
    assert cut == DraftTree([7, 9, 6], [-1, 0, 1])
    assert cut.first_path == [9, 6]
