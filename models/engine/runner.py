"""One forward pass: the rows of many sessions in, logits out.

Knows the model, the KV storage and the self-test; nothing of sampling, drafting or sessions. A pass
is ragged: each session brings any number of rows after the tokens whose KV it already has. So
prefill, decode and verification are the same pass. Rolling back needs no call here. Rows are
written to the slots of their positions, and rows after them are never read.

Several ranks may share the model (`parallel`). Then each holds a runner, the leader's `forward`
announces its pass, and the followers compute it in `follow`. So it is with what drafts here.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from models.config import EngineConfig
from models.device import fetch, wait_for
from models.engine.loading import LoadedModel, load_model
from models.engine.self_test import is_batch_invariant
from models.gpu import setup as gpu
from models.gpu.forward import PagedBackend
from models.gpu.graphs import GraphBackend, GraphsKept, alone
from models.kv.block_pool import BlockPool
from models.kv.budget import num_kv_blocks
from models.kv.rows import SequenceRows, copied_blocks, entered_blocks, with_ids
from models.parallel.message import ClearKeys, DraftPass, HeadPass, Pass, Work, received, sent
from models.parallel.ranks import TensorParallel
from models.protocol.messages import Sampling

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
        torch.set_num_threads(config.num_threads)
        self.device = torch.device(config.device)
        self.dtype: torch.dtype = getattr(torch, config.dtype)
        self._ranks = ranks
        if ranks is not None and config.batch_invariant:
            ranks.sums_in_order = True
        loaded = load_model(config, ranks)
        self.config = config = loaded.config
        self.vocab_size = loaded.drawable.size  # ids that may be sampled
        self.num_input_ids = loaded.num_columns  # ids that may be read
        self._missing_ids = torch.tensor(loaded.drawable.missing, device=self.device)
        self.eos_ids = loaded.eos_ids
        self.max_model_len = config.max_model_len
        self.max_num_batched_tokens = config.max_num_batched_tokens
        self.kv_bytes_per_token = loaded.kv_bytes_per_token
        self.layers = loaded.layers  # to look at, not to change
        self.heads, self.draft_layer = loaded.drafting.heads, loaded.drafting.layer
        self._states_of = loaded.drafting.states_of
        self.weight_bytes = loaded.weight_bytes  # before packing; of this rank's part
        self.bits_a_weight = loaded.bits_a_weight
        num_blocks = self._num_blocks(loaded)
        self.pool = BlockPool(num_blocks, config.block_tokens)
        self.backend = loaded.backend(num_blocks)  # to look at, as well
        self._graphs: GraphBackend | None = None
        if isinstance(self.backend, PagedBackend):
            agree = alone if ranks is None else ranks.all_say
            self._graphs = gpu.capture_graphs(self.backend, config, agree)
        self.batch_invariant = False
        if ranks is None:
            self._choose_tiling()
            return
        # Only the leader learns what its self-test found, and ranks must cut the same tiles.
        self.backend.use_tiling(self.backend.tilings[-1])
        ranks.wait_loaded()
        if ranks.is_leader:
            self.batch_invariant = is_batch_invariant(self)

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
            self._ranks.announce(Pass(sent(sequences, self.pool.block_size)))
        return self._drawable(self._compute(sequences, drawn_ids))

    def capture_chains(self) -> None:
        """Have draft steps in graphs as well where passes are. Not for a model that ranks share."""
        assert self._ranks is None, "other ranks cannot see ids that the host does not know"
        if self._graphs is not None and isinstance(self.backend, PagedBackend):
            finish = self._drawable
            gpu.capture_chains(self.backend, self.config, self._graphs, finish, self.vocab_size)

    def num_chain_steps(self, num_sessions: int, wanted: int) -> int:
        """Steps that `draw_steps` takes of the `wanted` ones; 0: there is no graph for them."""
        chains = self.backend.chains if isinstance(self.backend, PagedBackend) else None
        if chains is None:
            return 0
        return chains.num_steps(
            num_sessions, min(wanted, self.max_num_batched_tokens // num_sessions)
        )

    @torch.inference_mode()
    def draw_steps(
        self, sequences: Sequence[SequenceRows], first_ids: Tensor, samplings: Sequence[Sampling]
    ) -> Tensor:
        """Passes of one row a session, each of the ids drawn after the one before it.

        Args:
            sequences: the rows of all passes, as many as `num_chain_steps` has said; their ids are
                not looked at.
            first_ids: [S] ids of the first pass, on the device.
            samplings: [S] how sessions draw, by temperature, top-k, top-p and min-p alone.

        Returns:
            [S, steps] int64 on the device: what was drawn after each pass.

        Raises:
            ValueError: as `forward`. Nothing was stored.
        """
        self._check(sequences)
        self._prepare_blocks(sequences)
        chains = self.backend.chains if isinstance(self.backend, PagedBackend) else None
        assert chains is not None, "num_chain_steps() has not been asked"
        return chains.run(sequences, first_ids, samplings)

    @property
    def drafts_itself(self) -> bool:
        """True if a drafter here works with the model."""
        return self.heads is not None or self.draft_layer is not None

    @property
    def keeps_hidden(self) -> bool:
        """True if a drafter here needs states."""
        layer = self.draft_layer
        return self.heads is not None or (layer is not None and layer.takes_states)

    @property
    def takes_trees(self) -> bool:
        """True if drafts may have side paths: not on pages."""
        return self.backend.stores_shared_rows

    @property
    def hidden(self) -> Tensor | None:
        """States [R, F] of all rows of the newest pass, for what drafts; None: nothing does."""
        hidden = self.layers.hidden if self.keeps_hidden else None
        return None if hidden is None else self._states_of(hidden)

    @torch.inference_mode()
    def head_logits(self, hidden: Tensor, num_heads: int) -> Tensor:
        """Return the first heads' logits for the tokens after those that the states [S, F] gave.

        Returns:
            [S * num_heads, vocab_size] float32, of each state its heads in order.
        """
        assert self.heads is not None, "head_logits() without heads"
        states = self.heads.states(hidden, num_heads)
        if self._ranks is not None:
            self._ranks.announce(HeadPass(tuple(states.shape)))
            states = self._ranks.hand_out(states)
        return self._drawable(self.heads.logits(states).flatten(0, 1))

    @torch.inference_mode()
    def draft_pass(
        self,
        sequences: Sequence[SequenceRows],
        states: Tensor | None,
        drawn_ids: Tensor | None = None,
    ) -> tuple[Tensor, Tensor | None]:
        """Run rows through what drafts with the model, and store their keys there.

        Args:
            sequences: each of another session; row p has token p.
            states: [rows, F] row p has the state that gave token p; None: it takes none.
            drawn_ids: as of `forward`.

        Returns:
            Logits [n, vocab_size] float32 of the token behind each wanted row, and the states
            [n, F] for the rows behind them, good until the next such pass.

        Raises:
            ValueError: as `forward`. Nothing was stored.
        """
        layer = self.draft_layer
        assert layer is not None, "draft_pass() without a layer that drafts"
        self._check(sequences)
        if self._ranks is not None:
            if drawn_ids is not None:  # which other ranks cannot see
                sequences, drawn_ids = with_ids(sequences, fetch(drawn_ids)), None
            rows = sent(sequences, self.pool.block_size)
            self._ranks.announce(DraftPass(rows, 0 if states is None else states.shape[1]))
            states = None if states is None else self._ranks.hand_out(states)
        return self._drawable(self._compute_drafts(sequences, states, drawn_ids)), layer.hidden

    def clear_draft_keys(self, block_ids: list[int]) -> None:
        """Have zeros in these blocks for keys of the layer that drafts."""
        if block_ids:
            if self._ranks is not None:
                self._ranks.announce(ClearKeys(block_ids))
            self.backend.storage.clear_blocks(block_ids, of_heads=True)

    def are_finite(self, block_ids: list[int]) -> bool:
        """Return whether all KV in these blocks, which are full, is finite numbers."""
        return self.backend.storage.are_finite(block_ids)

    def products(self) -> list[nn.Module]:
        """Return the linear layers of a pass in order, the one that gives the logits last.

        Their cost is the least of a pass, without its other parts; benchmarks compare with it.
        """
        return self.layers.products()

    @property
    def attention(self) -> str:
        """The attention's back-end here, and the graphs that passes are replayed from; for logs."""
        if not isinstance(self.backend, PagedBackend):
            return f"{self.backend.name}, blocks of {self.pool.block_size}"
        return f"{self.backend.name} kernel, pages of {self.pool.block_size}, {self.graphs}"

    @property
    def graphs(self) -> GraphsKept:
        """The graphs that passes are replayed from; none but on GPUs."""
        return self.backend.graphs if isinstance(self.backend, PagedBackend) else GraphsKept()

    def wait(self) -> None:
        """Return when the device has computed what it was given."""
        wait_for(self.device)

    def keep_alive(self) -> None:
        """Send followers a sign of life; call it now and then while there is no pass."""
        if self._ranks is not None:
            self._ranks.keep_alive()

    def follow(self) -> None:
        """Compute what the leader announces, until it stops. Followers only.

        Raises:
            RuntimeError: another rank is gone or was silent for too long.
        """
        assert self._ranks is not None, "follow() without other ranks"
        while (work := self._ranks.next_work()) is not None:
            self._follow(work, self._ranks)

    def close(self) -> None:
        """Let the followers go. Idempotent; nothing to do for a model that is not shared."""
        if self._ranks is not None:
            self._ranks.close()

    @torch.inference_mode()
    def _follow(self, work: Work, ranks: TensorParallel) -> None:
        like = torch.empty(0, dtype=self.dtype, device=self.device)
        match work:
            case Pass(rows):
                self._compute(received(rows))
            case DraftPass(rows):
                states = ranks.handed_out(like, work.shape) if work.width else None
                self._compute_drafts(received(rows), states)
            case HeadPass(shape):
                assert self.heads is not None, "the leader has heads"
                self.heads.logits(ranks.handed_out(like, shape))
            case ClearKeys(block_ids):
                self.backend.storage.clear_blocks(block_ids, of_heads=True)

    @torch.inference_mode()
    def _compute(
        self, sequences: Sequence[SequenceRows], drawn_ids: Tensor | None = None
    ) -> Tensor:
        self._prepare_blocks(sequences)
        return self.backend.logits(sequences, drawn_ids)

    @torch.inference_mode()
    def _compute_drafts(
        self,
        sequences: Sequence[SequenceRows],
        states: Tensor | None,
        drawn_ids: Tensor | None = None,
    ) -> Tensor:
        layer = self.draft_layer
        assert layer is not None, "the leader has a layer that drafts"
        if self.backend.reads_unwritten:
            self._clear_new_blocks(sequences, of_heads=layer.takes_states)
        if states is not None:
            layer.take(states)
        return self.backend.logits(sequences, drawn_ids, layer)

    def _prepare_blocks(self, sequences: Sequence[SequenceRows]) -> None:
        self._copy_blocks(sequences)
        if self.backend.reads_unwritten:
            self._clear_new_blocks(sequences)

    @torch.inference_mode()
    def _drawable(self, logits: Tensor) -> Tensor:
        """Logits [n, V] of `num_columns` columns."""
        if self.vocab_size < self.num_input_ids:
            logits = logits[:, : self.vocab_size].contiguous()
        if len(self._missing_ids):
            logits.index_fill_(1, self._missing_ids, float("-inf"))
        return logits

    def _num_blocks(self, loaded: LoadedModel) -> int:
        """KV blocks, as many as every rank has room for."""
        is_share = self.config.gpu_memory_utilization is not None
        share_bytes = loaded.share_bytes() if is_share else 0
        num_blocks = num_kv_blocks(self.config, self.kv_bytes_per_token, share_bytes)
        return num_blocks if self._ranks is None else self._ranks.least(num_blocks)

    def _choose_tiling(self) -> None:
        """Choose the first tiling that makes the engine batch-invariant, else the fastest."""
        tilings = self.backend.tilings
        for tiling in tilings:
            self.backend.use_tiling(tiling)
            self.batch_invariant = is_batch_invariant(self)
            if self.batch_invariant:
                return
        self.backend.use_tiling(tilings[0])

    def _check(self, sequences: Sequence[SequenceRows]) -> None:
        num_rows = sum(len(sequence.token_ids) for sequence in sequences)
        if not 1 <= num_rows <= self.max_num_batched_tokens:
            raise ValueError(
                f"a pass takes 1 to {self.max_num_batched_tokens} rows, got {num_rows}"
            )
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
            if sequence.shared_rows and not self.takes_trees:
                raise ValueError("side paths of drafts are not served here")
            if not 0 <= sequence.num_logits <= num_own:
                raise ValueError(f"{sequence.num_logits} logits wanted of {num_own} rows")

    def _copy_blocks(self, sequences: Sequence[SequenceRows]) -> None:
        """Copy the blocks in whose middle sessions begin.

        It comes before any write, cleared blocks included: a block may be another owner's now.
        """
        sources, targets = copied_blocks(sequences, self.pool.block_size)
        if sources:
            self.backend.storage.copy_blocks(sources, targets)

    def _clear_new_blocks(
        self, sequences: Sequence[SequenceRows], *, of_heads: bool = False
    ) -> None:
        """Zero the blocks that a session enters at their first slot: those it just got.

        Rows of them that this pass does not write are read, hidden by the mask. A NaN of a former
        owner would spoil the result. Later blocks of a table are not read.
        """
        entered = entered_blocks(sequences, self.pool.block_size)
        if entered:
            self.backend.storage.clear_blocks(entered, of_heads=of_heads)
