"""KV blocks for the side paths of draft trees, from a pass to its verdicts.

The first path of a tree is rows of its session like any. Each further segment has blocks of its own
from the one on in which it leaves its path. So keys of a path lie at their positions. If it is
accepted, the session holds these blocks in place of its own, and nothing is copied back.

Side paths take what a pass leaves: rows that nobody else needs, and blocks that are free for that
time. A tree for which there is no room goes on as its first path.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from models.kv.block_pool import BlockPool, OutOfBlocks
from models.kv.rows import BlockList, SequenceRows
from models.scheduler.sessions import Job, PlannedRows, Session


@dataclass(slots=True)
class _TreeBlocks:
    first_position: int  # position of row 0
    own: list[int]  # blocks that are not the session's
    of_rows: dict[int, list[int]] = field(default_factory=dict)  # by side row: its path's blocks


class SidePaths:
    """The side paths of one engine's passes.

    Args:
        pool: of the KV blocks.
        max_rows: of a pass.
    """

    def __init__(self, pool: BlockPool, max_rows: int) -> None:
        self._pool = pool
        self._max_rows = max_rows
        self._held: dict[Job, _TreeBlocks] = {}

    def begin(self, rows: Sequence[PlannedRows]) -> list[SequenceRows]:
        """Return the sequences of a pass of these rows: each session's own, then side paths.

        Trees without room are taken from their jobs.
        """
        num_left = self._max_rows - sum(planned.num_rows for planned in rows)
        sequences: list[SequenceRows] = []
        num_before = 0
        for planned in rows:
            sequences.append(_own_rows(planned))
            if planned.num_side_rows:
                if planned.num_side_rows > num_left or not self._reserve(planned):
                    planned.job.tree = None
                num_left -= planned.num_side_rows
                sequences += self._side_rows(planned, num_before)
            num_before += planned.num_pass_rows
        return sequences

    def take(self, session: Session, job: Job, rows: Sequence[int]) -> None:
        """Make a path of the job's tree the session's; it had the first one.

        Args:
            session: whose last tokens are the first path.
            job: with the tree.
            rows: of the path, from 0 on.
        """
        tree, held = job.tree, self._held.get(job)
        assert tree is not None, "a path of no tree"
        num_common = sum(row == place for place, row in enumerate(rows))
        if num_common == len(rows):
            return
        assert held is not None, "a side path without blocks was computed"
        start = held.first_position + num_common
        session.rewrite(start, [tree.tokens[row] for row in rows[num_common:]])
        first = start // self._pool.block_size
        session.table.adopt(first, held.of_rows[rows[-1]][first:])
        session.num_computed_tokens = start + len(rows) - num_common
        if job.side_states is not None:
            places = [row - job.num_logits for row in rows[num_common:]]
            session.states.add(start, job.side_states[places])

    def end(self) -> None:
        """Give back what nobody has taken. Idempotent."""
        for held in self._held.values():
            self._pool.free(held.own)
        self._held.clear()

    def _reserve(self, planned: PlannedRows) -> bool:
        """Have blocks for all side paths of a tree; False: there are too few."""
        tree, size = planned.job.tree, self._pool.block_size
        assert tree is not None, "side rows without a tree"
        position = planned.start + planned.num_rows - planned.num_logits
        depths = _depths(tree.parents)
        spans = [
            ((position + depths[one.start]) // size, (position + depths[one[-1]]) // size + 1)
            for one in tree.segments[1:]
        ]
        try:
            own = self._pool.allocate(sum(stop - first for first, stop in spans))
        except OutOfBlocks:
            return False
        held = self._held[planned.job] = _TreeBlocks(position, own)
        of_session, num_taken = planned.session.table.block_ids, 0
        for segment, (first, stop) in zip(tree.segments[1:], spans, strict=True):
            before = held.of_rows.get(tree.parents[segment.start], of_session)
            fresh = own[num_taken : num_taken + stop - first]
            num_taken += len(fresh)
            block_ids = [*before[:first], *fresh]
            held.of_rows |= dict.fromkeys(segment, block_ids)
        return True

    def _side_rows(self, planned: PlannedRows, num_before: int) -> list[SequenceRows]:
        """Return the side paths of a tree with blocks, in a pass with so many rows before it."""
        tree, held = planned.job.tree, self._held.get(planned.job)
        if tree is None or held is None:
            return []
        size, table = self._pool.block_size, planned.session.table
        # Where row 0 would be if its session had no rows before it in the pass.
        row_0 = num_before + planned.num_rows - planned.num_logits
        sequences = []
        for segment in tree.segments[1:]:
            path = tree.path(tree.parents[segment.start])
            start = held.first_position + len(path)
            index = start // size
            # Rows before it in its first block: what this pass computes of them, the rest copied.
            path_rows = [*range(num_before, row_0), *(row_0 + row for row in path)]
            num_shared = min(start - index * size, len(path_rows))
            tokens = tree.tokens[segment.start : segment.stop]
            sequences.append(
                SequenceRows(
                    table=BlockList(held.of_rows[segment.start], start + len(tokens)),
                    start=start,
                    token_ids=tokens,
                    num_logits=len(tokens),
                    # With what a head has there already, of row 0 too.
                    copied_block=(
                        table.block_ids[index] if index * size <= held.first_position else None
                    ),
                    shared_rows=tuple(path_rows[len(path_rows) - num_shared :]),
                )
            )
        return sequences


def keep_side_states(rows: Sequence[PlannedRows], states: Tensor) -> Tensor:
    """Return the states of sessions' own rows, from those [R, F] of a pass.

    Jobs get the states of side paths.
    """
    if not any(planned.num_side_rows for planned in rows):
        return states
    own, start = [], 0
    for planned in rows:
        stop = start + planned.num_pass_rows
        first_side = stop - planned.num_side_rows
        own.append(states[start:first_side])
        planned.job.side_states = states[first_side:stop] if planned.num_side_rows else None
        start = stop
    return torch.cat(own)


def _own_rows(planned: PlannedRows) -> SequenceRows:
    session, start = planned.session, planned.start
    return SequenceRows(
        table=session.table,
        start=start,
        token_ids=session.tokens.ids[start : start + planned.num_rows],
        num_logits=planned.num_prompt_logits + planned.num_logits,
        copied_block=session.copied_block,
        adapter=session.adapter,
    )


def _depths(parents: Sequence[int]) -> list[int]:
    depths = [0]
    for parent in parents[1:]:
        depths.append(depths[parent] + 1)
    return depths
