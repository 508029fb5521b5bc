"""The back-end of vLLM's layers and kernels, over blocks that our pool assigns.

vLLM's own runner keeps a table of requests and builds its passes from that. Here a pass is built
from the rows it is given, and leaves nothing behind but keys and values. So rewinding, parking,
sharing blocks and preemption stay as they are with any back-end.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from vllm.forward_context import set_forward_context
from vllm.v1.attention.backend import CommonAttentionMetadata

from models.attention.backend import DraftLayer, Tiling, last_rows
from models.device import to_device
from models.gpu.indices import PassShape, PassTensors, exact_shape, index_pass, upload
from models.kv.rows import SequenceRows
from models.vllm.adapters import Adapters
from models.vllm.arguments import MAX_SEQUENCES
from models.vllm.hooks import VERSION
from models.vllm.storage import VllmStorage

_HOST = torch.device("cpu")
_NO_SLOT = -1  # vLLM's kernels store nothing there


class VllmBackend:
    """Implements `AttentionBackend`.

    Args:
        config: vLLM's.
        runner: vLLM's, whose layers, kernels and graphs these are; its cache is initialised.
        adapters: that rows may have.
        num_blocks: of the pool; the cache has one more, which pads tables.
        block_size: tokens of a block.
    """

    reads_unwritten = True  # vLLM's own runner zeroes blocks too, for kernels that mask by products
    stores_shared_rows = False
    tilings: tuple[Tiling, ...] = ((),)  # the kernels' own

    def __init__(
        self, config: Any, runner: Any, adapters: Adapters, num_blocks: int, block_size: int
    ) -> None:
        self._config = config
        self._runner = runner
        self._adapters = adapters
        self._layers: Any = runner.get_model()
        self._groups = [group for groups in runner.attn_groups for group in groups]
        self._layer_names = [name for group in self._groups for name in group.layer_names]
        num_columns = config.model_config.get_vocab_size()
        self._no_logits = torch.empty((0, num_columns), device=runner.device)
        self._null_block = num_blocks
        self._block_size = block_size
        context = config.compilation_config.static_forward_context
        caches = {name: context[name].kv_cache for name in self._layer_names}
        self.storage = VllmStorage(caches, num_blocks + 1)

    @property
    def name(self) -> str:
        """The name of vLLM's attention kernel."""
        kinds = sorted({group.backend.get_name() for group in self._groups})
        return f"{' and '.join(kinds)} of vLLM {VERSION}"

    def use_tiling(self, tiling: Tiling) -> None:
        """See `AttentionBackend`; there is one."""

    def logits(
        self,
        sequences: Sequence[SequenceRows],
        drawn_ids: Tensor | None = None,
        layer: DraftLayer | None = None,
    ) -> Tensor:
        """See `AttentionBackend`; no layer drafts here. Ranks but the leader may get no numbers."""
        assert layer is None, "engine vllm has no layer that drafts"
        counts = [len(rows.token_ids) for rows in sequences]
        drawn = None if drawn_ids is None else drawn_ids.split(counts)
        # Some kernels take the sessions with few rows first, as vLLM's runner gives them.
        order = sorted(range(len(counts)), key=counts.__getitem__)
        parts: list[Tensor] = []
        for first in range(0, len(order), MAX_SEQUENCES):
            part = order[first : first + MAX_SEQUENCES]
            ids = None if drawn is None else torch.cat([drawn[index] for index in part])
            parts.append(self._run([sequences[index] for index in part], ids))
        logits = parts[0] if len(parts) == 1 else torch.cat(parts)
        return _in_order(logits, [sequences[index].num_logits for index in order], order)

    def _run(self, sequences: Sequence[SequenceRows], drawn_ids: Tensor | None) -> Tensor:
        """Compute at most `MAX_SEQUENCES` sessions' rows; logits in their order."""
        shape = exact_shape(sequences, self._block_size)
        arrays = index_pass(sequences, shape, self._block_size, self._null_block)
        device = self._runner.device
        on_host = upload(arrays, shape, _HOST)
        tensors = on_host if device == _HOST else upload(arrays, shape, device)
        # A graph has its own number of rows; those behind the pass's own store nothing.
        num_adapters = self._adapters.num_of(sequences)
        mode, graph = self._runner.cudagraph_dispatcher.dispatch(
            num_tokens=shape.num_rows, has_lora=num_adapters > 0, num_active_loras=num_adapters
        )
        self._adapters.use(sequences, graph.num_tokens)
        ids, positions, slots = self._inputs(tensors, drawn_ids, graph.num_tokens)
        common = _metadata(sequences, shape, tensors, on_host)
        metadata: dict[str, Any] = {}
        for group in self._groups:
            metadata |= dict.fromkeys(group.layer_names, group.build_metadata(common))
        with set_forward_context(
            metadata,
            self._config,
            num_tokens=graph.num_tokens,
            cudagraph_runtime_mode=mode,
            batch_descriptor=graph,
            slot_mapping=dict.fromkeys(self._layer_names, slots),
        ):
            hidden: Tensor = self._layers(input_ids=ids, positions=positions)
            return self._last_logits(sequences, hidden)

    def _last_logits(self, sequences: Sequence[SequenceRows], hidden: Tensor) -> Tensor:
        wanted = last_rows(sequences)
        if not wanted:
            return self._no_logits
        is_whole = len(wanted) == len(hidden)
        states = hidden if is_whole else hidden[to_device(wanted, hidden.device, torch.int64)]
        logits: Tensor | None = self._layers.compute_logits(states)
        return self._no_logits if logits is None else logits.float()  # the leader alone has them

    def _inputs(
        self, tensors: PassTensors, drawn_ids: Tensor | None, num_rows: int
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Ids, positions and slots [num_rows] at the addresses that graphs were captured with."""
        ids = tensors.token_ids if drawn_ids is None else drawn_ids
        count = len(ids)
        own_ids = self._runner.input_ids.gpu[:num_rows]
        own_ids[:count].copy_(ids)
        own_positions = self._runner.positions[:num_rows]
        own_positions[:count].copy_(tensors.positions)
        if num_rows == count:
            return own_ids, own_positions, tensors.row_slots
        own_ids[count:].zero_()
        own_positions[count:].zero_()
        slots = tensors.row_slots.new_full((num_rows,), _NO_SLOT)
        slots[:count].copy_(tensors.row_slots)
        return own_ids, own_positions, slots


def _metadata(
    sequences: Sequence[SequenceRows], shape: PassShape, tensors: PassTensors, on_host: PassTensors
) -> CommonAttentionMetadata:
    return CommonAttentionMetadata(
        query_start_loc=tensors.cumulative_rows,
        query_start_loc_cpu=on_host.cumulative_rows,
        seq_lens=tensors.num_keys,
        seq_lens_cpu_upper_bound=on_host.num_keys,
        num_reqs=shape.num_sessions,
        num_actual_tokens=shape.num_rows,
        max_query_len=max(len(rows.token_ids) for rows in sequences),
        max_seq_len=int(on_host.num_keys.max()),
        block_table_tensor=tensors.block_table,
        slot_mapping=tensors.row_slots,
        causal=True,
        positions=tensors.positions,
        is_prefilling=torch.zeros(shape.num_sessions, dtype=torch.bool),
    )


def _in_order(logits: Tensor, counts: list[int], order: list[int]) -> Tensor:
    """Logits of sessions that were computed in `order`, `counts` of each, as they were asked."""
    if order == sorted(order) or len(logits) == 0:
        return logits
    parts = dict(zip(order, logits.split(counts), strict=True))
    return torch.cat([parts[index] for index in sorted(order)])
