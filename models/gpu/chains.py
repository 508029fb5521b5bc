"""Several draft steps in one graph: each pass reads the ids that the draw before it left.

Passes alone are replayed from graphs too (`graphs.py`). A chain of draft steps would then upload
index arrays and the terms of a draw between two of them. It would also launch the draw's kernels. A
small model's step takes about a millisecond, and that is some 5% of it (estimated). All inputs of
those steps but the ids are known before the first one. So they are uploaded at once here, and one
replay is all steps with their draws.

Steps have one row a session. Sizes are few, as each is captured for every number of steps. A step's
pass takes longer with more sessions, and the time between passes matters less.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from models.device import copy_into
from models.gpu.buckets import row_sizes
from models.gpu.graphs import NO_TERMS, GraphBackend, GraphsKept, GraphTerms, capture_each
from models.gpu.indices import PassTensors, index_pass, padded_shape
from models.kv.rows import SequenceRows
from models.kv.storage import KVBlocks
from models.protocol.messages import Sampling
from models.sampling.draws import pack_draws

MAX_SESSIONS = 16
MAX_STEPS = 7  # with the pass before them, drafts of 8
NUM_CHAINS = MAX_STEPS * len(row_sizes(MAX_SESSIONS))

_PADDING = Sampling(temperature=0)

Step = Callable[[PassTensors], Tensor]  # a pass of one row a session -> logits [R, V] float32


class ChainShape(NamedTuple):
    """Steps of a graph, and the rows of each, padded ones included."""

    num_rows: int
    num_steps: int


class DraftChains:
    """Graphs of all shapes up to `MAX_SESSIONS` and `MAX_STEPS`, captured when made.

    Draws are Triton's kernels; on a CPU these have to be interpreted.

    Args:
        backend: what captures.
        step: a forward pass; it must neither look at a value nor allocate what outlives it.
        blocks: the keys and values of the passes; padded rows put theirs in its null block.
        table_width: blocks of the longest possible session.
        vocab_size: ids that may be drawn, the columns of the logits.
        terms: what bounds the number of graphs.

    Attributes:
        kept: what there is.
    """

    def __init__(
        self,
        backend: GraphBackend,
        step: Step,
        blocks: KVBlocks,
        *,
        table_width: int,
        vocab_size: int,
        terms: GraphTerms = NO_TERMS,
    ) -> None:
        from models.sampling.kernels.terms import NUM_TERMS

        self._blocks = blocks
        self._table_width = table_width
        self._vocab_size = vocab_size
        self._num_terms = NUM_TERMS
        backend.release()
        first_bytes = backend.used_bytes()
        largest = padded_shape(MAX_SESSIONS, table_width)
        num_longs = MAX_STEPS * (largest.num_longs + MAX_SESSIONS * NUM_TERMS)
        self._longs = torch.zeros(num_longs, dtype=torch.int64, device=blocks.device)
        num_ints = MAX_STEPS * largest.num_ints
        self._ints = torch.zeros(num_ints, dtype=torch.int32, device=blocks.device)
        self._drawn = torch.zeros(MAX_STEPS * MAX_SESSIONS, dtype=torch.int64, device=blocks.device)
        self._graphs = capture_each(backend, self._calls(step), terms, first_bytes)
        backend.release()
        self.kept = GraphsKept(len(self._graphs), backend.used_bytes() - first_bytes)

    def num_steps(self, num_sessions: int, wanted: int) -> int:
        """Steps that one replay takes of the `wanted` ones; 0: none has so many sessions."""
        fitting = (
            shape.num_steps
            for shape in self._graphs
            if shape.num_rows >= num_sessions and shape.num_steps <= wanted
        )
        return max(fitting, default=0)

    def run(
        self, sequences: Sequence[SequenceRows], first_ids: Tensor, samplings: Sequence[Sampling]
    ) -> Tensor:
        """Draw the ids of each step, [S, steps] int64.

        Args:
            sequences: the rows of all steps of each session, as many as `num_steps` has said; their
                ids are not looked at.
            first_ids: [S] what the first step reads.
            samplings: [S] how sessions draw, by temperature, top-k, top-p and min-p alone.
        """
        num_sessions, num_steps = len(sequences), len(sequences[0].token_ids)
        shape = min(
            shape
            for shape in self._graphs
            if shape.num_rows >= num_sessions and shape.num_steps == num_steps
        )
        self._write(shape, sequences, samplings)
        self._tensors(shape)[0].token_ids[:num_sessions].copy_(first_ids)
        # A copy: the next replay overwrites what this one draws.
        return self._graphs[shape]()[:, :num_sessions].t().clone()

    def _calls(self, step: Step) -> Iterator[tuple[ChainShape, Callable[[], Tensor]]]:
        for num_rows in row_sizes(MAX_SESSIONS):
            for num_steps in range(1, MAX_STEPS + 1):
                shape = ChainShape(num_rows, num_steps)
                self._write(shape, (), ())
                yield shape, self._call(step, shape)

    def _call(self, step: Step, shape: ChainShape) -> Callable[[], Tensor]:
        from models.sampling.kernels.cut import row_cuts
        from models.sampling.kernels.draw import draw_rows

        passes = self._tensors(shape)
        steps_terms = self._step_terms(shape)
        drawn = self._drawn[: shape.num_steps * shape.num_rows].view(shape.num_steps, -1)

        def call() -> Tensor:
            ids = passes[0].token_ids
            for tensors, terms, out in zip(passes, steps_terms, drawn, strict=True):
                logits = step(tensors._replace(token_ids=ids))
                ids = out.copy_(draw_rows(logits, terms, row_cuts(logits, terms)))
            return drawn

        return call

    def _tensors(self, shape: ChainShape) -> list[PassTensors]:
        """Return the tensors of each step."""
        of_pass = padded_shape(shape.num_rows, self._table_width)
        longs = self._longs[: shape.num_steps * of_pass.num_longs].view(shape.num_steps, -1)
        ints = self._ints[: shape.num_steps * of_pass.num_ints].view(shape.num_steps, -1)
        return [PassTensors.cut(of_pass, *both) for both in zip(longs, ints, strict=True)]

    def _step_terms(self, shape: ChainShape) -> Tensor:  # [steps, R, NUM_TERMS]
        """Return the view of the sampling terms, which are stored after the index arrays."""
        first = shape.num_steps * padded_shape(shape.num_rows, self._table_width).num_longs
        terms = self._longs[first : first + shape.num_steps * shape.num_rows * self._num_terms]
        return terms.view(shape.num_steps, shape.num_rows, self._num_terms)

    def _write(
        self, shape: ChainShape, sequences: Sequence[SequenceRows], samplings: Sequence[Sampling]
    ) -> None:
        """Write the padded arrays of all steps into the buffers: two uploads."""
        blocks = self._blocks
        of_pass = padded_shape(shape.num_rows, self._table_width)
        steps = [
            [SequenceRows(rows.table, rows.start + index, [0], 1) for rows in sequences]
            for index in range(shape.num_steps)
        ]
        arrays = [index_pass(s, of_pass, blocks.block_size, blocks.null_block) for s in steps]
        num_padded = shape.num_rows - len(sequences)
        terms = pack_draws(
            [*samplings, *[_PADDING] * num_padded] * shape.num_steps,
            [p for rows in steps for p in (*(x.start + 1 for x in rows), *[0] * num_padded)],
            self._vocab_size,
        )
        longs = np.concatenate([*(each.longs for each in arrays), terms.ravel()])
        ints = np.concatenate([each.ints for each in arrays])
        copy_into(self._longs[: len(longs)], longs)
        copy_into(self._ints[: len(ints)], ints)
