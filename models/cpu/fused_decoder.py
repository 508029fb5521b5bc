"""The Llama family's forward pass as one program of compiled kernels.

transformers runs some forty operations per layer; here they are eight kernels, half of them
products. Query, key and value share one product. Gate and up share another, which applies the gate.
A residual is added inside the product before it. All results stay independent of the other rows of
a pass. Nothing of a pass goes back to Python between its first layer and its last.

A model is taken apart by the names its layers have in transformers (`models/layers/family.py`).
Knows nothing of sessions; `models/cpu/backend.py` calls it in place of the model.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

from torch import Tensor, nn
from transformers import PreTrainedModel

from models.attention.features import layer_windows
from models.cpu.batch import CpuPass, LaneStorage
from models.cpu.decoder_layer import HIDDEN, Layer, norm_of, take_apart
from models.cpu.embedding import Embedding, PackedEmbedding, WholeEmbedding
from models.cpu.layer_program import LayerProgram
from models.cpu.product import KernelLinear
from models.cpu.quantizer import Quantizer
from models.cpu.weight_memory import kept
from models.layers.family import like_of, rotary_tables
from models.layers.grouped import GroupedEmbedding, weight_of
from models.layers.groups import TABLE_BITS, Bits, group_weight
from models.layers.linear import MakeLinear


class FusedDecoder:
    """Implements `ModelForward` for a model of the Llama family: taken apart and packed.

    Args:
        model: on the CPU, with plain linear layers; it loses them.
        num_positions: positions a session may have.
        num_threads: of a pass.
        make_linear: makes `KernelLinear` layers.

    Attributes:
        embedding: of input ids.
        head: the product that gives logits.
        tables: of rotary positions.
        num_threads: of a pass.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        num_positions: int,
        num_threads: int,
        make_linear: MakeLinear = KernelLinear,
    ) -> None:
        inner: Any = model.model
        self.tables = rotary_tables(inner.rotary_emb, num_positions, like_of(model))
        self.num_threads = num_threads
        final_norm = norm_of(inner.norm)
        output: Any = model.get_output_embeddings()
        weight, is_table = weight_of(output), table_bits(model, make_linear) is not None
        if is_table and isinstance(weight, Tensor):
            weight = group_weight(weight, TABLE_BITS)
        self.head: KernelLinear = make_linear(weight, output.bias)
        self.embedding = _embedding(model, self.head if is_table else None, make_linear)
        model.set_output_embeddings(nn.Identity())
        layers = [
            take_apart(layer, window, make_linear)
            for layer, window in zip(inner.layers, layer_windows(model.config), strict=True)
        ]
        self._final_norm = final_norm
        self._program = self._program_of(layers)

    def _program_of(self, layers: Sequence[Layer]) -> LayerProgram:
        return LayerProgram(layers, self._final_norm, self.head, self.embedding, self.num_threads)

    def first_layers(self, num_layers: int) -> FusedDecoder:
        """Return a decoder of so many of these layers, with the same end; weights are shared."""
        first = copy.copy(self)
        first._program = self._program_of(self._program.layers[:num_layers])
        return first

    def use(self, storage: LaneStorage) -> None:
        """Keep keys and values in `storage`. Call it once, before the first pass."""
        program = self._program
        program.use(storage, self.tables, [program.embed(HIDDEN)])

    def __call__(
        self, token_ids: Tensor, positions: Tensor, paged: CpuPass, keep: Tensor | None
    ) -> Tensor:
        """See `ModelForward`; the pass knows the positions."""
        return self._program.run(token_ids, paged, paged.kept if keep is None else keep)

    def products(self) -> list[nn.Module]:
        """See `ModelForward`."""
        return list(self._program.products)

    def keep_hidden(self, layers: Sequence[int] = ()) -> None:
        """See `ModelForward`: states are made of what is there when they are asked for."""
        if layers:
            self._program.keep_inputs(layers)

    @property
    def hidden(self) -> Tensor:
        """See `ModelForward`."""
        inputs = self._program.inputs
        return self._program.states if inputs is None else inputs


def table_bits(model: Any, make_linear: MakeLinear) -> Bits | None:
    """Return the bits of an output layer that is the embedding too; None: it is not.

    One that is rounded here has `TABLE_BITS`. With 4 it would cost more of the text than all other
    layers together do.
    """
    own, output = model.get_input_embeddings(), model.get_output_embeddings()
    if isinstance(own, GroupedEmbedding):
        is_shared = own.stored is getattr(output, "stored", None)
        return own.stored.bits if is_shared else None
    is_rounded = isinstance(make_linear, Quantizer) and make_linear.rounds
    return TABLE_BITS if is_rounded and own.weight is output.weight else None


def _embedding(model: Any, table: KernelLinear | None, make_linear: MakeLinear) -> Embedding:
    """Return the rows of input ids.

    They are those of `table`, an output layer in groups, or the model's own. Those in groups are
    out of the model then, which looks them up here.
    """
    own = model.get_input_embeddings()
    if table is None and not isinstance(own, GroupedEmbedding):
        own.weight = nn.Parameter(kept(own.weight.detach()), requires_grad=False)
        return WholeEmbedding(own.weight.detach())
    packed = PackedEmbedding(table or make_linear(own.weight, None))
    model.set_input_embeddings(packed)
    return packed
