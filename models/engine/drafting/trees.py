"""Which candidates beside a draft are worth a row: trees, by how often each rank was right.

Of each place it is known how often the first candidate was the target's token, and where it was
not, how often the second, the third and so on was. A node is right as often as all of its path; the
tree of so many rows that brings most tokens is that of the likeliest nodes. What its rounds take is
measured as that of chains is, and a tree is verified only where it brings more tokens a second than
the best chain.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Sequence
from itertools import accumulate
from statistics import median

from models.costs.pass_times import PassTimes
from models.costs.running_mean import running_mean
from models.engine.drafting.lengths import DraftLengths
from models.sampling.draft_tree import DraftTree, grow_tree
from models.sampling.verification import needs_draft_probs
from models.scheduler.sessions import Session

NUM_RANKS = 4  # candidates of a place
SIZES = (2, 3, 4, 6, 8, 12, 16)  # draft rows of trees
Shape = list[tuple[int, int]]  # of each node the one it follows, -1: none, and its rank

_PRIOR = 0.3  # of each further rank, all before it wrong
_LEAST_SHARE = 0.02  # weight of the newest token in a running mean; at first it is more
_LEAST_GAIN = 1.03  # of a tree over a chain: what is measured is uncertain
_CHAIN_EVERY = 32  # drafts; then a chain is verified, so that its time stays known
_TRY_EVERY = 64  # drafts; then another size that may pay is tried, some drafts long
_NUM_TRIES = 3
_MAY_PAY = 0.9  # of the best size's tokens a second
_RANK_EVERY = 8  # chains; then other candidates are looked at, so that their rates are known
_SHAPE_EVERY = 16  # drafts; rates hardly change in fewer
_NUM_SAMPLES = 5  # durations that a median is of


def best_nodes(
    rates: Sequence[Sequence[float]], num_nodes: int, *, has_all_paths: bool
) -> tuple[Shape, list[float]]:
    """The likeliest nodes of a tree in their order, and how likely the path of each is.

    Args:
        rates: by place and rank, of candidates whose path so far is right.
        num_nodes: at most.
        has_all_paths: whether there are candidates behind any node; else behind first ones only.
    """
    shape: Shape = []
    chances: list[float] = []
    # Less its chance, number, node before, rank, place, chance of that node, all first so far.
    waiting = [(-rates[0][0], 0, -1, 0, 0, 1.0, True)] if rates else []
    num_seen = 1
    while waiting and len(shape) < num_nodes:
        less, _, parent, rank, place, before, is_first = heapq.heappop(waiting)
        shape.append((parent, rank))
        chances.append(-less)
        if rank + 1 < len(rates[place]):
            chance = before * rates[place][rank + 1]
            further = (-chance, num_seen, parent, rank + 1, place, before, is_first)
            heapq.heappush(waiting, further)
        is_on_first = is_first and rank == 0
        if place + 1 < len(rates) and (has_all_paths or is_on_first):
            chance = -less * rates[place + 1][0]
            child = (-chance, num_seen + 1, len(shape) - 1, 0, place + 1, -less, is_on_first)
            heapq.heappush(waiting, child)
        num_seen += 2
    return shape, chances


def num_places(shape: Shape) -> int:
    """Places that a shape needs candidates for."""
    depths: list[int] = []
    for parent, _ in shape:
        depths.append(1 + (depths[parent] if parent >= 0 else 0))
    return max(depths, default=0)


def plant(session: Session, shape: Shape, candidates: Sequence[Sequence[int]]) -> DraftTree:
    """What a session drafts: the shape with its candidates, or its chain of first ones.

    It is a chain where the shape is empty, and where paths beside it could not be verified: masks
    are those of one path, and a rule that asks for distributions takes one draft. Nothing follows
    an eos.
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


def num_common(left: Sequence[int], right: Sequence[int]) -> int:
    """How many first ids are the same in both."""
    return next(
        (i for i, pair in enumerate(zip(left, right, strict=False)) if pair[0] != pair[1]),
        min(len(left), len(right)),
    )


class DraftTrees:
    """Statistics of all sessions together, and what follows from them.

    Args:
        lengths: of chains.
        times: of passes.
        has_all_paths: see `best_nodes`.
    """

    def __init__(self, lengths: DraftLengths, times: PassTimes, *, has_all_paths: bool) -> None:
        self._lengths = lengths
        self._times = times
        self.has_all_paths = has_all_paths
        # Of each place how often rank 1, 2, ... was right where the ranks before were not.
        self._missed = [[_PRIOR] * (NUM_RANKS - 1) for _ in lengths.rates]
        self._num_seen = [[0] * (NUM_RANKS - 1) for _ in lengths.rates]
        self._rounds_s: dict[tuple[int, int], deque[float]] = {}  # by sessions and rows
        self._shape: Shape = []  # of the largest tree; smaller ones begin like it
        self._num_tokens: list[float] = []  # that so many of its nodes bring, from 0 on
        self._num_drafts = 0
        self._tried = (0, 0)  # a size, and how often it will be tried again
        self._num_chains = 0

    def note(self, candidates: Sequence[Sequence[int]], tokens: Sequence[int]) -> None:
        """The target's tokens were these, from the first place on."""
        place = num_common([ids[0] for ids in candidates], tokens)
        if place < min(len(candidates), len(tokens)):
            self._note_missed(place, candidates[place][1:], tokens[place])

    def note_round(self, num_sessions: int, num_rows: int, taken_s: float) -> None:
        """So many sessions with trees of so many rows were back after `taken_s`."""
        kept = self._rounds_s.setdefault((num_sessions, num_rows), deque(maxlen=_NUM_SAMPLES))
        kept.append(taken_s)

    def choose(self, num_sessions: int, length: int) -> Shape:
        """The tree for the next drafts of so many sessions; empty: chains of `length` pay more."""
        if length == 0:
            return []
        self._grow()
        size, num_left = self._tried
        if num_left > 0:
            self._tried = size, num_left - 1
            return self._shape[:size]
        if self._num_drafts % _CHAIN_EVERY == 0:
            return []
        chain = self._lengths.num_tokens(length) / self._lengths.expected_s(num_sessions, length)
        rates = {0: _LEAST_GAIN * chain}
        for size in SIZES:
            if length <= size <= len(self._shape):
                rates[size] = self._num_tokens[size] / self._expected_s(num_sessions, size, length)
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

    def _note_missed(self, place: int, others: Sequence[int], token: int) -> None:
        for number, other in enumerate(others):
            self._num_seen[place][number] += 1
            share = max(_LEAST_SHARE, 1.0 / (2 + self._num_seen[place][number]))
            means = self._missed[place]
            means[number] = running_mean(means[number], float(other == token), share)
            if other == token:
                return

    def _grow(self) -> None:
        """Have the largest tree by what is known."""
        if self._num_drafts % _SHAPE_EVERY == 0:
            self._shape, chances = best_nodes(
                self._rates(), SIZES[-1], has_all_paths=self.has_all_paths
            )
            self._num_tokens = list(accumulate(chances, initial=1.0))
        self._num_drafts += 1

    def _rates(self) -> list[list[float]]:
        """By place and rank."""
        rates = []
        for first, missed in zip(self._lengths.rates, self._missed, strict=True):
            of_place, left = [first], 1.0 - first
            for share in missed:
                of_place.append(left * share)
                left *= 1.0 - share
            rates.append(of_place)
        return rates

    def _expected_s(self, num_sessions: int, num_rows: int, length: int) -> float:
        """What a round takes."""
        measured = self._rounds_s.get((num_sessions, num_rows), ())
        if len(measured) > 1:
            return median(measured)
        by_rows = self._times.by_rows
        more_s = by_rows.at(num_sessions * (1 + num_rows)) - by_rows.at(num_sessions * (1 + length))
        return self._lengths.expected_s(num_sessions, length) + max(0.0, more_s)
