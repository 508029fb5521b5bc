"""Chooses the candidates beside a draft that are worth a row: trees, by each rank's accuracy.

The rate at which the first candidate was the target's token is known for each place. If it was not,
it is known how often the second, the third and so on was. A node is right as often as all of its
path. The tree of so many rows that brings most tokens is that of the likeliest nodes. The time of
its rounds is measured like that of chains. A tree is verified only if it brings more tokens a
second than the best chain.
"""

from __future__ import annotations

import heapq
import math
from collections import deque
from collections.abc import Sequence
from itertools import accumulate, count
from operator import mul
from statistics import median
from typing import NamedTuple

from models.costs.pass_times import PassTimes
from models.costs.running_mean import running_mean
from models.engine.drafting.lengths import DraftLengths
from models.sampling.draft_tree import DraftTree, grow_tree
from models.sampling.verification import needs_draft_probs
from models.scheduler.sessions import Session

NUM_RANKS = 4  # candidates of a place
SIZES = (2, 3, 4, 6, 8, 12, 16)  # draft rows of trees
Shape = list[tuple[int, int]]  # for each node its parent, -1: none, and its rank
Rates = Sequence[Sequence[float]]  # by place and rank

_PRIORS = (0.5, *[0.3] * (NUM_RANKS - 1))  # rate of a rank, if all before it are wrong
# Weight of the newest token in a running mean; at first it is more. Small, because nodes that are
# nearly as good as others are chosen among.
_LEAST_SHARE = 0.001
_LEAST_GAIN = 1.03  # gain of a tree over a chain: measurements are uncertain
_CHAIN_EVERY = 32  # drafts; then a chain is verified, so that its time stays known
_TRY_EVERY = 64  # drafts; then another size that may pay is tried, some drafts long
_NUM_TRIES = 3
_MAY_PAY = 0.9  # part of the best size's tokens a second
_RANK_EVERY = 8  # chains; then other candidates are looked at, so that their rates are known
_SHAPE_EVERY = 16  # drafts; rates hardly change in fewer
_NUM_SAMPLES = 5  # durations that a median is of


class _Node(NamedTuple):
    """One that may be added, the likeliest first."""

    less_chance: float  # less its chance
    number: int  # counts the candidates so far
    parent: int
    rank: int
    place: int
    chance_before: float  # chance of the node that it follows
    is_first: bool  # that one and all before it have rank 0


def best_nodes(first: Rates, beside: Rates | None, num_nodes: int) -> tuple[Shape, list[float]]:
    """Return the likeliest nodes of a tree in their order, and the probability of each one's path.

    Args:
        first: how often candidates are right, those of rank 0 before them being right.
        beside: the same where others were right before them; None: there are no candidates then.
        num_nodes: at most.
    """
    shape: Shape = []
    chances: list[float] = []
    waiting = [_Node(-first[0][0], 0, -1, 0, 0, 1.0, True)] if first else []
    numbers = count(1)
    while waiting and len(shape) < num_nodes:
        node = heapq.heappop(waiting)
        shape.append((node.parent, node.rank))
        chances.append(-node.less_chance)
        of_place = (first if node.is_first or beside is None else beside)[node.place]
        if node.rank + 1 < len(of_place):
            chance = node.chance_before * of_place[node.rank + 1]
            further = node._replace(less_chance=-chance, number=next(numbers), rank=node.rank + 1)
            heapq.heappush(waiting, further)
        is_first, place = node.is_first and node.rank == 0, node.place + 1
        rates = first if is_first else beside
        if rates is not None and place < len(rates):
            chance = chances[-1] * rates[place][0]
            child = _Node(-chance, next(numbers), len(shape) - 1, 0, place, chances[-1], is_first)
            heapq.heappush(waiting, child)
    return shape, chances


def num_places(shape: Shape) -> int:
    """Places that a shape needs candidates for."""
    depths: list[int] = []
    for parent, _ in shape:
        depths.append(1 + (depths[parent] if parent >= 0 else 0))
    return max(depths, default=0)


def plant(session: Session, shape: Shape, candidates: Sequence[Sequence[int]]) -> DraftTree:
    """Return a session's draft: the shape with its candidates, or its chain of first ones.

    It is a chain if the shape is empty, or if paths beside it could not be verified. Masks are
    those of one path, and a rule that asks for distributions takes one draft. Nothing follows an
    eos.
    """
    opened = session.opened
    if not shape or opened.constraint is not None or needs_draft_probs(opened.sampling):
        shape = [(place - 1, 0) for place in range(len(candidates))]
    wanted: list[list[int | None]] = [[None] * NUM_RANKS for _ in range(num_places(shape))]
    for of_place, ids in zip(wanted, candidates, strict=False):
        for rank, token in enumerate(ids):
            is_new = token not in ids[:rank]
            of_place[rank] = token if is_new and token not in opened.eos_ids else None
    return grow_tree(session.tokens.ids[-1], shape, wanted)


class _RankRates:
    """The rates at which candidates of each rank are right, by place."""

    def __init__(self, num_places: int) -> None:
        # The rate of a rank counts only if those before it are wrong.
        self._right = [list(_PRIORS) for _ in range(num_places)]
        self._num_seen = [[0] * NUM_RANKS for _ in range(num_places)]

    def note(self, place: int, ids: Sequence[int], token: int) -> None:
        """Note which of the candidates `ids`, by rank, is `token`, if any."""
        seen, means = self._num_seen[place], self._right[place]
        for rank, found in enumerate(ids):
            seen[rank] += 1
            share = max(_LEAST_SHARE, 1.0 / (2 + seen[rank]))
            means[rank] = running_mean(means[rank], float(found == token), share)
            if found == token:
                return

    def rates(self) -> list[list[float]]:
        """Return the rates by place and rank."""
        rates = []
        for means in self._right:
            left = accumulate((1.0 - mean for mean in means), mul, initial=1.0)
            rates.append([mean * rest for mean, rest in zip(means, left, strict=False)])
        return rates


class DraftTrees:
    """Statistics of all sessions together, and what follows from them.

    Args:
        lengths: of chains.
        times: of passes.
        has_all_paths: whether candidates go with any before them, not with first ones only.
    """

    def __init__(self, lengths: DraftLengths, times: PassTimes, *, has_all_paths: bool) -> None:
        self._lengths = lengths
        self._times = times
        self.has_all_paths = has_all_paths
        self._first, self._beside = _RankRates(lengths.longest), _RankRates(lengths.longest)
        self._rounds_s: dict[tuple[int, int], deque[float]] = {}  # by sessions and rows
        self._shape: Shape = []  # the largest tree's; smaller ones begin like it
        self._num_tokens: list[float] = []  # that so many of its nodes bring, from 0 on
        self._chain_tokens: list[float] = []  # by length from 0 on
        self._num_drafts = 0
        self._tried = (0, 0)  # a size, and how often it will be tried again
        self._num_chains = 0
        self.fixed: int | None = None  # rows that all trees are to have, whatever pays

    def note(self, candidates: Sequence[Sequence[int]], tokens: Sequence[int]) -> None:
        """Note the target's tokens, from the first place on."""
        table = self._first
        for place, (ids, token) in enumerate(zip(candidates, tokens, strict=False)):
            table.note(place, ids, token)
            if token != ids[0]:
                table = self._beside
                if not self.has_all_paths:  # candidates are of another path
                    return

    def note_round(self, num_sessions: int, num_rows: int, taken_s: float) -> None:
        """So many sessions with trees of so many rows were back after `taken_s`."""
        kept = self._rounds_s.setdefault((num_sessions, num_rows), deque(maxlen=_NUM_SAMPLES))
        kept.append(taken_s)

    def choose(self, num_sessions: int, length: int) -> Shape:
        """Choose the tree of the next drafts; empty if chains of `length` pay more."""
        if length == 0:
            return []
        self._grow()
        if self.fixed is not None:
            return self._shape[: self.fixed]
        size, num_left = self._tried
        if num_left > 0:
            self._tried = size, num_left - 1
            return self._shape[:size]
        if self._num_drafts % _CHAIN_EVERY == 0:
            return []
        chain_s = self._lengths.expected_s(num_sessions, length) or math.inf  # nothing is known
        rates = {0: _LEAST_GAIN * self._chain_tokens[length] / chain_s}
        for size in SIZES:
            if length <= size <= len(self._shape):
                tree_s = self._expected_s(num_sessions, size, length) or math.inf
                rates[size] = self._num_tokens[size] / tree_s
        best = max(rates, key=lambda size: rates[size])
        rivals = [n for n in rates if n not in (0, best) and rates[n] >= _MAY_PAY * rates[best]]
        num_tries, rest = divmod(self._num_drafts, _TRY_EVERY)
        if best and rivals and rest == 1:
            best = rivals[num_tries % len(rivals)]
            self._tried = best, _NUM_TRIES - 1
        return self._shape[:best]

    def num_ranks(self, shape: Shape) -> int:
        """Candidates to ask for: for a tree all, for a chain now and then, to learn of them."""
        if shape:
            return NUM_RANKS
        self._num_chains += 1
        return NUM_RANKS if self._num_chains % _RANK_EVERY == 1 else 1

    def _grow(self) -> None:
        """Have the largest tree by what is known."""
        if self._num_drafts % _SHAPE_EVERY == 0:
            beside = self._beside.rates() if self.has_all_paths else None
            first = self._first.rates()
            self._shape, chances = best_nodes(first, beside, SIZES[-1])
            survival = accumulate((ranks[0] for ranks in first), mul, initial=1.0)
            self._chain_tokens = list(accumulate(survival))
            self._num_tokens = list(accumulate(chances, initial=1.0))
        self._num_drafts += 1

    def _expected_s(self, num_sessions: int, num_rows: int, length: int) -> float:
        """Return the expected time of a round."""
        measured = self._rounds_s.get((num_sessions, num_rows), ())
        if len(measured) > 1:
            return median(measured)
        by_rows = self._times.by_rows
        more_s = by_rows.at(num_sessions * (1 + num_rows)) - by_rows.at(num_sessions * (1 + length))
        return self._lengths.expected_s(num_sessions, length) + max(0.0, more_s)
