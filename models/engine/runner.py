"""One forward pass: the rows of many sessions in, logits out.

Knows the model, the KV storage and the self-test; nothing of sampling, drafting or sessions. A
pass is ragged: each session brings any number of rows behind the tokens whose KV it already has,
so prefill, decode and verification are the same pass. Rolling back needs no call here: rows are
written to the slots of their positions, and what lies behind is never looked at.

Several ranks may share the model (`parallel`): then each holds a runner, the leader's `forward`
announces its pass, and the followers compute it in `follow`.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import TYPE_CHECKING, cast

import torch
from torch import Tensor, nn

from models.attention.gather_plan import (
    FITTING_TILES,
    FIXED_TILES,
    PagedPass,
    plan_pass,
)
from models.attention.interface import KernelPass
from models.checkpoint.loader import Checkpoint, kv_bytes_per_token, load_checkpoint
from models.config import EngineConfig
from models.cpu.setup import make_planner
from models.device import to_device
from models.engine.self_test import is_batch_invariant
from models.gpu.forward import last_rows
from models.gpu.setup import choose_kernel, make_varlen
from models.kv.block_pool import BlockPool
from models.kv.budget import num_kv_blocks
from models.kv.pages import PageStorage
from models.kv.rows import SequenceRows
from models.kv.storage import KVSizes, KVStorage
from models.layers.linear import PackedLinear
from models.parallel.ranks import TensorParallel

if TYPE_CHECKING:
    from models.cpu.batch import CpuPass, CpuPlanner, LaneStorage

__all__ = ["ModelRunner", "SequenceRows"]


class ModelRunner:
    """A loaded model with its KV storage. Not safe to use from several threads at once.

    Args:
        config: what to load and where; `num_threads` is set for the whole process.
        ranks: those that share the model. The leader's runner is ready when all followers are in
            `follow`: its self-test is their first work.

    Raises:
        ValueError: the checkpoint is missing, cannot be served, or is smaller than the limits.
        RuntimeError: another rank is gone.
    """

    def __init__(self, config: EngineConfig, ranks: TensorParallel | None = None) -> None:
        if config.num_threads is not None:
            torch.set_num_threads(config.num_threads)
        self.config = config
        self.device = torch.device(config.device)
        self.dtype: torch.dtype = getattr(torch, config.dtype)
        self._ranks = ranks
        checkpoint = load_checkpoint(config, ranks)
        self._checkpoint = checkpoint
        self._model = checkpoint.model
        self.vocab_size = checkpoint.drawable.size  # ids that may be drawn
        self.num_input_ids = checkpoint.num_columns  # ids that may be read
        self._missing_ids = torch.tensor(checkpoint.drawable.missing, device=self.device)
        self.eos_ids = checkpoint.eos_ids
        self.max_model_len = config.max_model_len
        self.max_batch_rows = config.max_batch_rows
        self.kv_bytes_per_token = kv_bytes_per_token(checkpoint, self.dtype.itemsize)
        num_blocks = num_kv_blocks(config, self.kv_bytes_per_token)
        self.pool = BlockPool(num_blocks, config.block_size)
        parameters = inspect.signature(self._model.forward).parameters
        self._selects_rows = "logits_to_keep" in parameters
        sizes = _kv_sizes(checkpoint, config, num_blocks)
        kernel = choose_kernel(config, checkpoint)
        self._varlen = (
            make_varlen(config, checkpoint, kernel, sizes, self._logits) if kernel else None
        )
        self._num_groups = checkpoint.num_heads // checkpoint.num_key_heads
        self._planner: CpuPlanner | None = None
        self._storage: KVStorage | LaneStorage | PageStorage
        if self._varlen is not None:
            self._storage = self._varlen.storage
        elif checkpoint.has_kernels:
            self._planner = make_planner(
                sizes, checkpoint.num_heads, checkpoint.windows, checkpoint.fused
            )
            self._storage = self._planner.storage
        else:
            self._storage = KVStorage(sizes)
        # Only the leader learns what its self-test found, and ranks must cut the same tiles.
        self._tile_sizes = FITTING_TILES if ranks is None else FIXED_TILES
        self.batch_invariant = False
        if ranks is not None:
            ranks.wait_loaded()
        if ranks is None:
            self._choose_tiles()
        elif ranks.is_leader:
            self.batch_invariant = is_batch_invariant(self)

    @property
    def weight_bytes(self) -> int:
        """Memory of the weights, before packing; of this rank's part where ranks share them."""
        return self._checkpoint.weight_bytes

    def forward(self, sequences: Sequence[SequenceRows], drawn_ids: Tensor | None = None) -> Tensor:
        """Run the rows of `sequences`, each of another session, and store their KV.

        Logits of ids that the tokenizer does not have are left out, or -inf between others.

        Rows in a block that another table shares are refused as well: `ValueError`.

        Args:
            sequences: the rows.
            drawn_ids: [rows] the ids of all rows, where they are on the device and the host does
                not know them yet; those in `sequences` then say only how many there are. Not for
                a model that ranks share.

        Returns:
            [sum of num_logits, vocab_size] float32 on the device, in the order of `sequences`.
            They may be overwritten by the next pass.

        Raises:
            ValueError: no rows, too many, or rows that their table or the context has no room
                for. Nothing was stored.
            RuntimeError: another rank is gone or did not do its part in time.
        """
        self._check(sequences)
        if self._ranks is not None:
            assert drawn_ids is None, "other ranks cannot see ids that the host does not know"
            self._ranks.announce(sequences, self.pool.block_size)
        return self._drawable(self._compute(sequences, drawn_ids))

    def are_finite(self, block_ids: list[int]) -> bool:
        """Whether all KV in these blocks, which are full, is finite numbers."""
        return self._storage.are_finite(block_ids)

    def products(self) -> list[nn.Module]:
        """The linear layers of a pass in order, the one that gives the logits last.

        Without the rest of the pass they are the least it can cost: what benchmarks compare with.
        """
        if self._checkpoint.fused is not None:
            return list(self._checkpoint.fused.products)
        kinds = (nn.Linear, PackedLinear)
        return [module for module in self._model.modules() if isinstance(module, kinds)]

    def keep_alive(self) -> None:
        """To be called now and then while there is no pass: followers expect to hear something."""
        if self._ranks is not None:
            self._ranks.keep_alive()

    def follow(self) -> None:
        """Compute what the leader announces, until it stops. Followers only.

        Raises:
            RuntimeError: another rank is gone or was silent for too long.
        """
        assert self._ranks is not None, "follow() without other ranks"
        while (sequences := self._ranks.next_pass()) is not None:
            self._compute(sequences)

    def close(self) -> None:
        """Let the followers go. Idempotent; nothing to do for a model that is not shared."""
        if self._ranks is not None:
            self._ranks.close()

    @torch.inference_mode()
    def _compute(
        self, sequences: Sequence[SequenceRows], drawn_ids: Tensor | None = None
    ) -> Tensor:
        if self._planner is None:  # its kernels read nothing that was not written
            self._clear_new_blocks(sequences)
        num_logits = [sequence.num_logits for sequence in sequences]
        if self._varlen is not None:
            return self._varlen(sequences, num_logits, drawn_ids)
        token_ids = [token for sequence in sequences for token in sequence.token_ids]
        wanted = last_rows([len(s.token_ids) for s in sequences], num_logits)
        ids = to_device(token_ids, self.device) if drawn_ids is None else drawn_ids
        keep = to_device(wanted, self.device, torch.int64)
        if self._planner is not None:
            cpu_pass = self._planner(sequences)
            return self._logits(ids, cpu_pass.positions, cpu_pass, keep).float()
        positions = [p for s in sequences for p in range(s.start, s.start + len(s.token_ids))]
        places = to_device(positions, self.device)
        return self._logits(ids, places, self._plan(sequences), keep).float()

    def _plan(self, sequences: Sequence[SequenceRows]) -> PagedPass:
        assert isinstance(self._storage, KVStorage), "kernels have layouts and plans of their own"
        return plan_pass(
            sequences,
            self._storage,
            self._num_groups,
            self._checkpoint.windows,
            self._tile_sizes,
        )

    @torch.inference_mode()
    def _drawable(self, logits: Tensor) -> Tensor:
        """Logits [n, V] of `num_columns` columns."""
        if self.vocab_size < self.num_input_ids:
            logits = logits[:, : self.vocab_size].contiguous()
        if len(self._missing_ids):
            logits.index_fill_(1, self._missing_ids, float("-inf"))
        return logits

    def _choose_tiles(self) -> None:
        """Tiles that fit, unless fixed ones make the engine batch-invariant and these do not."""
        is_tiled = isinstance(self._storage, KVStorage)
        for tile_sizes in (FITTING_TILES, FIXED_TILES) if is_tiled else (FITTING_TILES,):
            self._tile_sizes = tile_sizes
            self.batch_invariant = is_batch_invariant(self)
            if self.batch_invariant:
                return
        self._tile_sizes = FITTING_TILES

    def _logits(
        self,
        token_ids: Tensor,
        positions: Tensor,
        paged: PagedPass | KernelPass,
        keep: Tensor | None,
    ) -> Tensor:
        """Logits [n, V] of the rows `keep` [n], or of all."""
        fused = self._checkpoint.fused
        if fused is not None:
            rows = fused(token_ids, cast("CpuPass", paged))
            return fused.logits(rows if keep is None else rows.index_select(0, keep))
        return self._model_logits(token_ids, positions, paged, keep)

    def _model_logits(
        self,
        token_ids: Tensor,
        positions: Tensor,
        paged: PagedPass | KernelPass,
        keep: Tensor | None,
    ) -> Tensor:
        """The same by transformers' own forward."""
        selects = self._selects_rows and keep is not None
        selection = {"logits_to_keep": keep} if selects else {}
        output = self._model(
            input_ids=token_ids.unsqueeze(0),
            position_ids=positions.unsqueeze(0),
            use_cache=False,
            paged=paged,
            **selection,
        )
        return output.logits[0] if selects or keep is None else output.logits[0, keep]

    def _check(self, sequences: Sequence[SequenceRows]) -> None:
        num_rows = sum(len(sequence.token_ids) for sequence in sequences)
        if not 1 <= num_rows <= self.max_batch_rows:
            raise ValueError(f"a pass takes 1 to {self.max_batch_rows} rows, got {num_rows}")
        for sequence in sequences:
            num_own = len(sequence.token_ids)
            room = min(sequence.table.num_tokens, self.max_model_len)
            if num_own == 0 or sequence.start < 0 or sequence.start + num_own > room:
                raise ValueError(
                    f"{num_own} rows from position {sequence.start} do not fit in {room} tokens"
                )
            stop = sequence.start + num_own
            if self.pool.writes_shared(sequence.table.block_ids, sequence.start, stop):
                raise ValueError(
                    f"{num_own} rows from position {sequence.start} would write a shared block"
                )
            if not 0 <= sequence.num_logits <= num_own:
                raise ValueError(f"{sequence.num_logits} logits wanted of {num_own} rows")

    def _clear_new_blocks(self, sequences: Sequence[SequenceRows]) -> None:
        """Zero the blocks that a session enters at their first slot: those it just got.

        Rows of them that this pass does not write are read, hidden by the mask, and would spoil
        the result if a former owner had left a NaN there. Later blocks of a table are not read.
        """
        size = self.pool.block_size
        entered = [
            sequence.table.block_ids[index]
            for sequence in sequences
            for index in range(
                -(-sequence.start // size), -(-(sequence.start + len(sequence.token_ids)) // size)
            )
        ]
        if entered:
            self._storage.clear_blocks(entered)


def _kv_sizes(checkpoint: Checkpoint, config: EngineConfig, num_blocks: int) -> KVSizes:
    return KVSizes(
        num_layers=checkpoint.num_layers,
        num_blocks=num_blocks,
        block_size=config.block_size,
        num_heads=checkpoint.num_key_heads,
        head_dim=checkpoint.head_dim,
        dtype=getattr(torch, config.dtype),
        device=torch.device(config.device),
    )
