"""One forward pass: the rows of many sessions in, logits out.

Knows the model, the KV storage and the self-test; nothing of sampling, drafting or sessions. A
pass is ragged: each session brings any number of rows behind the tokens whose KV it already has,
so prefill, decode and verification are the same pass. Rolling back needs no call here: rows are
written to the slots of their positions, and what lies behind is never looked at.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence

import torch
from torch import Tensor

from models.attention import (
    FITTING_TILES,
    FIXED_TILES,
    KVStorage,
    PagedPass,
    SequenceRows,
    plan_pass,
)
from models.checkpoint import Checkpoint, load_checkpoint
from models.config import EngineConfig
from models.kv_cache import BlockPool
from models.self_test import is_batch_invariant

__all__ = ["ModelRunner", "SequenceRows"]


class ModelRunner:
    """A loaded model with its KV storage. Not safe to use from several threads at once.

    Args:
        config: what to load and where; `num_threads` is set for the whole process.

    Raises:
        ValueError: the checkpoint is missing, cannot be served, or is smaller than the limits.
    """

    def __init__(self, config: EngineConfig) -> None:
        if config.num_threads is not None:
            torch.set_num_threads(config.num_threads)
        self.config = config
        self.device = torch.device(config.device)
        self.dtype: torch.dtype = getattr(torch, config.dtype)
        checkpoint = load_checkpoint(config)
        self._checkpoint = checkpoint
        self._model = checkpoint.model
        self.vocab_size = checkpoint.vocab_size
        self.eos_ids = checkpoint.eos_ids
        self.max_model_len = config.max_model_len
        self.max_batch_rows = config.max_batch_rows
        self.pool = BlockPool(config.num_blocks, config.block_size)
        self._storage = _make_storage(checkpoint, config)
        parameters = inspect.signature(self._model.forward).parameters
        self._selects_rows = "logits_to_keep" in parameters
        self._tile_sizes = FITTING_TILES
        self.batch_invariant = is_batch_invariant(self)
        if not self.batch_invariant:
            self._tile_sizes = FIXED_TILES
            self.batch_invariant = is_batch_invariant(self)

    @property
    def kv_bytes(self) -> int:
        """Memory of the KV storage."""
        return self._storage.num_bytes

    @torch.inference_mode()
    def forward(self, sequences: Sequence[SequenceRows]) -> Tensor:
        """Run the rows of `sequences`, each of another session, and store their KV.

        Returns:
            [sum of num_logits, vocab_size] float32 on the device, in the order of `sequences`.

        Raises:
            ValueError: no rows, too many, or rows that their table or the context has no room
                for. Nothing was stored.
        """
        self._check(sequences)
        self._clear_new_blocks(sequences)
        token_ids = [token for sequence in sequences for token in sequence.token_ids]
        positions = [p for s in sequences for p in range(s.start, s.start + len(s.token_ids))]
        wanted = _wanted_rows(sequences)
        checkpoint = self._checkpoint
        num_groups = checkpoint.num_heads // checkpoint.num_key_heads
        paged = plan_pass(sequences, self._storage, num_groups, self._tile_sizes)
        ids = torch.tensor(token_ids, device=self.device)
        places = torch.tensor(positions, device=self.device)
        keep = torch.tensor(wanted, dtype=torch.long, device=self.device)
        if checkpoint.fused is not None:
            rows = checkpoint.fused(ids, places, paged)
            return checkpoint.fused.logits(rows.index_select(0, keep)).float()
        return self._model_logits(ids, places, paged, keep).float()

    def _model_logits(
        self, token_ids: Tensor, positions: Tensor, paged: PagedPass, keep: Tensor
    ) -> Tensor:
        """Logits [n, V] of the rows `keep` [n] by transformers' own forward."""
        selection = {"logits_to_keep": keep} if self._selects_rows else {}
        output = self._model(
            input_ids=token_ids.unsqueeze(0),
            position_ids=positions.unsqueeze(0),
            use_cache=False,
            paged=paged,
            **selection,
        )
        return output.logits[0] if self._selects_rows else output.logits[0, keep]

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
            if not 0 <= sequence.num_logits <= num_own:
                raise ValueError(f"{sequence.num_logits} logits wanted of {num_own} rows")

    def _clear_new_blocks(self, sequences: Sequence[SequenceRows]) -> None:
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


def _wanted_rows(sequences: Sequence[SequenceRows]) -> list[int]:
    wanted: list[int] = []
    stop = 0
    for sequence in sequences:
        stop += len(sequence.token_ids)
        wanted.extend(range(stop - sequence.num_logits, stop))
    return wanted


def _make_storage(checkpoint: Checkpoint, config: EngineConfig) -> KVStorage:
    return KVStorage(
        num_layers=checkpoint.num_layers,
        num_blocks=config.num_blocks,
        block_size=config.block_size,
        num_heads=checkpoint.num_key_heads,
        head_dim=checkpoint.head_dim,
        dtype=getattr(torch, config.dtype),
        device=torch.device(config.device),
    )
