"""An MTP head as one program of compiled kernels, behind a decoder that was taken apart."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor

from models.cpu.batch import CpuPass, LaneStorage
from models.cpu.decoder_layer import HIDDEN, MIXED, NORMED, norm_of, take_apart
from models.cpu.fused_decoder import FusedDecoder
from models.cpu.layer_program import LayerProgram
from models.cpu.ops import buffer
from models.cpu.product import Epilogue, KernelLinear
from models.heads.draft_ids import on_all_ids
from models.heads.mtp import MtpParts
from models.layers.groups import GroupedWeight
from models.layers.linear import MakeLinear

_STATES = buffer(6)


class FusedMtp:
    """Implements `DraftLayer`. The joining product is two, one of states and one of embeddings.

    Weights of bfloat16 are rounded to 8 bits, the target's output layer for it too. One that is in
    groups serves the head as it is.

    Args:
        parts: as they were read; the layer loses its linear layers.
        output: [V, F] the weight of the target's output layer.
        decoder: whose embedding and positions it shares.
        window: of the layer's attention.
        make_linear: makes `KernelLinear` layers.
    """

    takes_states = True

    def __init__(
        self,
        parts: MtpParts,
        output: Tensor | GroupedWeight,
        decoder: FusedDecoder,
        window: int | None,
        make_linear: MakeLinear,
    ) -> None:
        self.num_tokens = parts.num_tokens
        self._vocab_size, self._ids = output.shape[0], parts.draft_ids
        if output.dtype == torch.bfloat16:
            # Drafts need no exact numbers, and a step of few rows takes as long as its weights are.
            make_linear = partial(KernelLinear, bits=8)
        head, self.num_bytes = decoder.head, parts.num_bytes
        if self._ids is None and (head.bits == 8 or isinstance(output, GroupedWeight)):
            self.num_bytes -= head.out_features * head.in_features * output.dtype.itemsize
        else:
            head = make_linear(_rows(output, self._ids), None)
        of_states, of_tokens = parts.projections
        self._of_states: KernelLinear = make_linear(of_states, None)
        self._of_tokens: KernelLinear = make_linear(of_tokens, None)
        self._state_norm = norm_of(parts.hidden_layernorm)
        self._token_norm = norm_of(parts.token_layernorm)
        layer = take_apart(parts.layer, window, make_linear)
        final_norm = norm_of(parts.final_layernorm)
        self._program = LayerProgram(
            [layer], final_norm, head, decoder.embedding, decoder.num_threads
        )
        self._tables = decoder.tables
        self._states = of_states

    def use(self, storage: LaneStorage) -> None:
        """Keep keys and values in `storage`. Call it once, before the first pass."""
        program, table = self._program, self._program.table
        embedded = MIXED  # not in use yet, and wide enough
        begin = [
            self._state_norm.step(table, _STATES),
            *self._of_states.steps(table, NORMED, HIDDEN, Epilogue()),
            program.embed(embedded),
            self._token_norm.step(table, embedded),
            *self._of_tokens.steps(table, NORMED, HIDDEN, Epilogue(residual=HIDDEN)),
        ]
        program.use(storage, self._tables, begin)

    def take(self, states: Tensor) -> None:
        """See `DraftLayer`."""
        self._states = states.contiguous()
        self._program.table.put(_STATES, self._states)

    def __call__(
        self, token_ids: Tensor, positions: Tensor, paged: CpuPass, keep: Tensor | None
    ) -> Tensor:
        """See `DraftLayer`; the pass knows the positions."""
        logits = self._program.run(token_ids, paged, paged.kept if keep is None else keep)
        return on_all_ids(logits, self._ids, self._vocab_size)

    @property
    def hidden(self) -> Tensor:
        """See `DraftLayer`."""
        return self._program.kept_states


def _rows(output: Tensor | GroupedWeight, ids: Tensor | None) -> Tensor | GroupedWeight:
    """Return the weight of the ids that a head drafts, or of all."""
    if ids is None:
        return output
    return output[ids] if isinstance(output, Tensor) else output.rows(ids)
