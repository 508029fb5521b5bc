"""Which trees of candidates are drafted: by how often each rank is right and what rounds take."""

from __future__ import annotations

import random
from itertools import combinations

import pytest

from models.costs.pass_times import PassTimes
from models.engine.drafting.lengths import DraftLengths
from models.engine.drafting.trees import (
    NUM_RANKS,
    SIZES,
    DraftTrees,
    best_nodes,
    num_places,
    plant,
)
from models.kv.block_pool import BlockPool
from models.protocol.messages import Endpoint, Sampling
from models.protocol.token_sequence import TokenSequence, num_common
from models.scheduler.sessions import Session
from tests.cases.messages import opening

LONGEST = 3
RATES = [[0.5, 0.25, 0.1], [0.6, 0.2, 0.1], [0.4, 0.3, 0.1]]


def test_the_likeliest_nodes_are_found() -> None:
    shape, chances = best_nodes(RATES, None, 6)
    assert shape == [(-1, 0), (0, 0), (-1, 1), (1, 0), (0, 1), (-1, 2)]
    assert chances == pytest.approx([0.5, 0.3, 0.25, 0.12, 0.1, 0.1])
    shape, chances = best_nodes(RATES, RATES, 5)
    assert shape == [(-1, 0), (0, 0), (-1, 1), (2, 0), (1, 0)]
    assert chances == pytest.approx([0.5, 0.3, 0.25, 0.15, 0.12])
    assert num_places(shape) == 3
    less = [[rate / 10 for rate in rates] for rates in RATES]
    assert best_nodes(RATES, less, 20)[0].index((2, 0)) > 5, "seldom right behind a second one"
    assert num_places([]) == 0


@pytest.mark.parametrize("has_all_paths", [False, True])
def test_no_other_tree_of_so_many_nodes_is_likelier(has_all_paths: bool) -> None:
    nodes: dict[tuple[int, ...], float] = {(): 1.0}
    for rates in RATES[:2]:
        for path, chance in list(nodes.items()):
            if len(path) == RATES.index(rates) and (has_all_paths or not any(path)):
                nodes |= {(*path, rank): chance * rate for rank, rate in enumerate(rates)}
    del nodes[()]
    for num_nodes in range(1, 6):
        best = max(
            sum(nodes[path] for path in some)
            for some in combinations(nodes, num_nodes)
            if all(path[:-1] in some for path in some if len(path) > 1)
        )
        _, chances = best_nodes(RATES[:2], RATES[:2] if has_all_paths else None, num_nodes)
        assert sum(chances) == pytest.approx(best)


def trees_with(
    by_rank: list[float], row_s: float, *, tree_row_s: float | None = None
) -> DraftTrees:
    """One session whose place is right by rank so often, with rounds of 1 s and `row_s` a row."""
    times = PassTimes()
    for rows in range(1, 20):
        times.note(rows, 1.0 + row_s * rows, 0.0)
    lengths = DraftLengths(LONGEST, times)
    trees = DraftTrees(lengths, times, has_all_paths=True)
    choose = random.Random(1)
    for _ in range(3000):
        ranks = choose.choices(range(len(by_rank) + 1), [*by_rank, 1 - sum(by_rank)], k=LONGEST)
        candidates = [list(range(NUM_RANKS)) for _ in range(LONGEST)]
        tokens = [rank if rank < len(by_rank) else 99 for rank in ranks]
        right = num_common([0] * LONGEST, tokens)
        lengths.note(LONGEST, right)
        trees.note(candidates, tokens[: right + 1])
    for _ in range(2):
        for length in range(LONGEST + 1):
            lengths.note_round(1, length, 1.0 + row_s * (1 + length))
        for size in SIZES if tree_row_s is not None else ():
            assert tree_row_s is not None
            trees.note_round(1, size, 1.0 + tree_row_s * (1 + size))
    return trees


def sizes(trees: DraftTrees, num_drafts: int, length: int = LONGEST) -> list[int]:
    return [len(trees.choose(1, length)) for _ in range(num_drafts)]


def test_the_tree_that_pays_most_is_drafted() -> None:
    """Rows for nothing: the largest; dear ones: a chain; between them what the ranks are worth."""
    by_rank = [0.5, 0.3, 0.1]
    assert max(sizes(trees_with(by_rank, 0.0001), 30)) >= 12
    assert set(sizes(trees_with(by_rank, 0.5), 30, length=1)) == {0}
    between = sizes(trees_with(by_rank, 0.04), 30)
    assert 3 < max(between) < SIZES[-1]
    # Where further ranks are never right, there is nothing to gain.
    assert set(sizes(trees_with([0.5], 0.04), 30)) == {0}


def test_what_rounds_of_trees_take_is_what_counts() -> None:
    assert set(sizes(trees_with([0.5, 0.3], 0.001, tree_row_s=0.5), 30)) == {0}


def test_a_chain_is_verified_now_and_then() -> None:
    found = sizes(trees_with([0.5, 0.3, 0.1], 0.001), 320)
    assert found.count(0) == 10


def test_no_draft_has_no_tree() -> None:
    assert sizes(trees_with([0.5, 0.3, 0.1], 0.001), 50, length=0) == [0] * 50


def test_candidates_are_looked_at_for_trees_and_now_and_then() -> None:
    trees = trees_with([0.5], 0.04)
    assert [trees.num_ranks([]) for _ in range(9)] == [NUM_RANKS, *[1] * 7, NUM_RANKS]
    assert trees.num_ranks([(-1, 0)]) == NUM_RANKS


def session_of(sampling: Sampling, constraint: Endpoint | None = None) -> Session:
    opened = opening("s", sampling, 2, eos_ids=[9], constraint=constraint)
    table = BlockPool(4, 16).new_table()
    return Session(opened, 0.0, table, 0.0, tokens=TokenSequence([1, 2]))


def test_nothing_follows_an_end_and_no_sibling_comes_twice() -> None:
    shape = [(-1, 0), (0, 0), (-1, 1), (1, 0), (0, 1), (2, 0)]
    session = session_of(Sampling())
    tree = plant(session, shape, [[5, 6], [7, 7], [8, 3]])
    assert (tree.tokens, tree.parents) == ([2, 5, 7, 8, 6, 7], [-1, 0, 1, 2, 0, 4])
    tree = plant(session, shape, [[9, 6], [7, 4], [8, 3]])
    assert (tree.tokens, tree.parents) == ([2, 6, 7], [-1, 0, 1])
    tree = plant(session, shape, [[5, 6]])  # no room for more
    assert (tree.tokens, tree.parents) == ([2, 5, 6], [-1, 0, 0])
    assert plant(session, shape, []).tokens == [2]


def test_under_a_grammar_and_by_rejection_drafts_are_chains() -> None:
    shape = [(-1, 0), (0, 0), (-1, 1)]
    endpoint = Endpoint(address="tcp://127.0.0.1:1", public_key="", epoch=3)
    rejecting = Sampling(verification="rejection")
    for session in (session_of(Sampling(), endpoint), session_of(rejecting)):
        assert plant(session, shape, [[5, 6], [7, 4]]).parents == [-1, 0, 1]
    greedy = session_of(Sampling(temperature=0, verification="rejection"))
    assert plant(greedy, shape, [[5, 6], [7, 4]]).parents == [-1, 0, 1, 0]
