"""Layers with what comes before and after them, as one program of compiled kernels.

The rows of a pass begin differently: a decoder's are embeddings, a drafting layer's are joined with
states. The rest is the same for both: layers, then a norm and the product that gives logits. Only
some of the rows have logits. Nothing of a pass goes back to Python in between.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from models.cpu.batch import CpuPass, LaneStorage
from models.cpu.decoder_layer import HIDDEN, NORMED, Buffers, Layer, Norm, num_weights
from models.cpu.embedding import Embedding
from models.cpu.kernels import parameters
from models.cpu.kernels.compiling import Call
from models.cpu.ops import PassTable, buffer, pick
from models.cpu.product import Epilogue, KernelLinear
from models.cpu.program import Program

# Numbers of a pass's products from which on threads share it: less is done sooner by one.
_PARALLEL_NUMBERS = 1 << 19

# Sources of the first rows of a pass and of those at its end; the place of logits.
_PICKED_FROM, _LOGITS = buffer(5), buffer(2)
MAX_INPUTS = 5  # that are kept of a pass: the buffers before these


class KeptInputs:
    """Copies of the rows that go into some layers of a pass.

    Args:
        layers: by index.
        like: rows [any, F] of the pass's type.
    """

    def __init__(self, layers: Sequence[int], like: Tensor) -> None:
        assert len(layers) <= MAX_INPUTS, "a table has no more buffers"
        self._layers = layers
        self._row_bytes = like[0].nbytes
        self._buffers = Buffers([like.shape[1]] * len(layers), like)
        self._places = torch.arange(0)  # rows are copied in their order

    def steps(self, layer: int) -> list[Call]:
        """Return the steps of a pass before a layer."""
        return [
            pick(self._row_bytes, self._buffers.table, _PICKED_FROM, buffer(number))
            for number, kept in enumerate(self._layers)
            if kept == layer
        ]

    def enter(self, hidden: Tensor) -> None:
        """Begin a pass whose rows between layers are `hidden` [R, F]."""
        num_rows = len(hidden)
        self._buffers.room_for(num_rows)
        if len(self._places) < num_rows:
            self._places = torch.arange(num_rows)
        self._buffers.table.put(parameters.PICKED, self._places)
        self._buffers.table.put(_PICKED_FROM, hidden)

    @property
    def rows(self) -> Tensor:
        """The rows of the newest pass, [R, layers * F]."""
        return torch.cat([self._buffers.rows(i) for i in range(len(self._layers))], dim=-1)


class LayerProgram:
    """Layers and the end of a pass.

    Args:
        layers: in order, at least one.
        final_norm: of the rows whose logits are wanted.
        head: gives them.
        embedding: rows that passes are begun with.
        num_threads: of a pass.
    """

    def __init__(
        self,
        layers: Sequence[Layer],
        final_norm: Norm,
        head: KernelLinear,
        embedding: Embedding,
        num_threads: int,
    ) -> None:
        self.layers, self.head = layers, head
        self._embedding = embedding
        self._final_norm = final_norm
        self._num_threads = num_threads
        products = [product for layer in layers for product in layer.products]
        self._numbers_per_row = sum(map(num_weights, products))
        like = embedding.like
        self._row_bytes = like[0].nbytes
        self._pass = Buffers(layers[0].widths(like.shape[1]), like)
        self._end = Buffers([like.shape[1]] * 2, like)
        self._program: Program | None = None  # until the storage is known
        self._inputs: KeptInputs | None = None

    @property
    def table(self) -> PassTable:
        """The table of a pass's rows, for the steps that begin it."""
        return self._pass.table

    def embed(self, target: int) -> Call:
        """Return a step that has embedding rows in the buffer `target`, by the pass's ids."""
        return self._embedding.step(self.table, target)

    def use(
        self, storage: LaneStorage, tables: tuple[Tensor, Tensor], begin: Sequence[Call]
    ) -> None:
        """Keep keys and values in `storage`. Call it once, before the first pass.

        Args:
            storage: has the layers, by their index.
            tables: of rotary positions.
            begin: steps that have the rows in `HIDDEN`.
        """
        first, last = self.table, self._end.table
        steps = list(begin)
        for layer in self.layers:
            if self._inputs is not None:
                steps += self._inputs.steps(layer.index)
            steps += layer.steps(storage, tables, first)
        steps += [
            pick(self._row_bytes, last, _PICKED_FROM, HIDDEN),
            self._final_norm.step(last),
            *self.head.steps(last, NORMED, _LOGITS, Epilogue(is_wide=True)),
        ]
        self._program = Program(steps, self._num_threads)

    def run(self, token_ids: Tensor, paged: CpuPass, keep: Tensor) -> Tensor:
        """Return logits [n, V] float32 of rows `keep` [n] of a pass of `token_ids` [R]; store keys.

        Indices are int64 and contiguous.
        """
        assert self._program is not None, "there is no storage yet"
        num_rows, num_kept = len(token_ids), len(keep)
        table, end = self.table, self._end.table
        hidden = self._pass.room_for(num_rows)
        table.put(parameters.PICKED, token_ids)
        table.put(parameters.POSITIONS, paged.positions)
        paged.slots.enter(table)
        paged.plan.enter(table)
        if self._inputs is not None:
            self._inputs.enter(hidden)
        self._end.room_for(num_kept)
        logits = torch.empty(num_kept, self.head.num_outputs)
        end.put(parameters.PICKED, keep)
        end.put(_PICKED_FROM, hidden)
        end.put(_LOGITS, logits)
        num_numbers = num_rows * self._numbers_per_row + num_kept * num_weights(self.head)
        self._program.run(is_short=num_numbers < _PARALLEL_NUMBERS)
        return logits

    @property
    def kept_states(self) -> Tensor:
        """The normed rows [n, F] that gave the newest pass's logits; the next overwrites them."""
        return self._end.rows(1)

    def keep_inputs(self, layers: Sequence[int]) -> None:
        """Keep the rows that go into these layers, at most `MAX_INPUTS`; call it before `use`."""
        assert self._program is None, "its steps are fixed"
        self._inputs = KeptInputs(layers, self._embedding.like)

    @property
    def inputs(self) -> Tensor | None:
        """The kept inputs of the newest pass side by side, [R, layers * F]; None: none are kept."""
        return None if self._inputs is None else self._inputs.rows

    @property
    def states(self) -> Tensor:
        """All rows of the newest pass, [R, F], normed as for logits."""
        rows, norm = self._pass.rows(0), self._final_norm
        return F.rms_norm(rows, (rows.shape[1],), norm.weight, norm.epsilon)

    @property
    def products(self) -> list[KernelLinear]:
        """All matrix products of a pass with weights, in order; the last gives the logits."""
        return [product for layer in self.layers for product in layer.products] + [self.head]
