"""The interface of back-ends, which compute the passes of one model, and their shared parts.

A runner has one, chosen when its model is loaded (`engine/backends.py`):

    attention/gather.py   torch's own operations on copies of the keys, on any device
    cpu/backend.py        compiled kernels that read keys where they lie
    gpu/forward.py        a paged kernel, small passes replayed from graphs
    vllm/backend.py       vLLM's layers and kernels
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from functools import partial
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from models.device import to_device
from models.kv.rows import SequenceRows
from models.kv.storage import BlockStorage

Tiling = tuple[int, ...]  # sizes of query tiles, rows


class AttentionBackend(Protocol):
    """Computes passes over keys and values that it stores."""

    @property
    def name(self) -> str:
        """The name for logs and tests: "gather", "compiled" or that of a paged kernel."""
        ...

    @property
    def storage(self) -> BlockStorage:
        """The storage of keys and values, in the back-end's own layout."""
        ...

    @property
    def reads_unwritten(self) -> bool:
        """True if unwritten rows of a block are read, and hidden by a mask.

        A NaN of a former owner would spoil the result, so new blocks must be cleared.
        """
        ...

    @property
    def stores_shared_rows(self) -> bool:
        """True if sequences may have `shared_rows`."""
        ...

    @property
    def tilings(self) -> tuple[Tiling, ...]:
        """Ways to cut query rows, the fastest first; the last one is likeliest to be
        batch-invariant."""
        ...

    def use_tiling(self, tiling: Tiling) -> None:
        """Cut rows like that, one of `tilings`, from the next pass on. Begins with the first."""
        ...

    def logits(
        self,
        sequences: Sequence[SequenceRows],
        drawn_ids: Tensor | None = None,
        layer: DraftLayer | None = None,
    ) -> Tensor:
        """Compute a pass; its keys are stored.

        Args:
            sequences: one session's rows each, checked.
            drawn_ids: [rows] ids of all rows on the device, in place of those of `sequences`.
            layer: computes it in place of the model; its keys are its own.

        Returns:
            [sum of num_logits, V] float32, the last rows of each sequence. They may be overwritten
            by the next pass.
        """
        ...


class ModelLayers(Protocol):
    """The layers of a model as runners look at them, whoever calls them."""

    def products(self) -> list[nn.Module]:
        """Return the linear layers in order, the one that gives the logits last."""
        ...

    @property
    def hidden(self) -> Tensor | None:
        """States [R, F] of all rows of the newest pass, of which the last layer makes logits.

        Or the rows that went into n layers, side by side [R, n * F], where these are kept. They
        are good until the next pass. None: not kept.
        """
        ...


class ModelForward(ModelLayers, Protocol):
    """The layers of a model, without attention: that is the pass's."""

    def __call__(
        self, token_ids: Tensor, positions: Tensor, paged: Any, keep: Tensor | None
    ) -> Tensor:
        """Logits [n, V] of the rows `keep` [n], or of all R rows.

        Args:
            token_ids: [R].
            positions: [R] of each row in its session.
            paged: the back-end's plan of the pass, whose `store` and `attend` layers call.
            keep: [n] int64; None: all.
        """
        ...

    def keep_hidden(self, layers: Sequence[int] = ()) -> None:
        """Have `hidden` from the next pass on. Call it before the first pass.

        Args:
            layers: whose inputs are to be kept, in place of what the last layer gives.

        Raises:
            ValueError: it cannot.
        """
        ...


class DraftLayer(Protocol):
    """A drafter that works with the model, row by row: an MTP head, or the model's first layers."""

    num_tokens: int  # the longest draft
    num_bytes: int  # beside the model
    takes_states: bool  # else it is the model's own first layers, whose keys it writes

    def take(self, states: Tensor) -> None:
        """Begin the next pass with these states [R, F], one for each row."""
        ...

    def __call__(
        self, token_ids: Tensor, positions: Tensor, paged: Any, keep: Tensor | None
    ) -> Tensor:
        """Logits [n, V] of the rows `keep` [n], or of all R rows; as a `ModelForward`."""
        ...

    @property
    def hidden(self) -> Tensor | None:
        """States [n, F] for the rows behind, good until the next pass; None: it takes none."""
        ...


class TransformersForward:
    """`ModelForward` by transformers' own code, with `paged_attention` in its layers."""

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self._selects_rows = "logits_to_keep" in inspect.signature(model.forward).parameters
        self._is_kept: Sequence[int] = ()  # layers whose inputs are; -1: what the last one gives
        self._kept: dict[int, Tensor] = {}

    def __call__(
        self, token_ids: Tensor, positions: Tensor, paged: Any, keep: Tensor | None
    ) -> Tensor:
        """See `ModelForward`."""
        selects = self._selects_rows and keep is not None
        selection = {"logits_to_keep": keep} if selects else {}
        output = self._model(
            input_ids=token_ids.unsqueeze(0),
            position_ids=positions.unsqueeze(0),
            use_cache=False,
            paged=paged,
            **selection,
        )
        logits: Tensor = output.logits[0]
        return logits if selects or keep is None else logits[keep]

    def products(self) -> list[nn.Module]:
        """See `ModelForward`."""
        modules = self._model.modules()
        return [module for module in modules if hasattr(module, "in_features")]

    def keep_hidden(self, layers: Sequence[int] = ()) -> None:
        """See `ModelForward`."""
        model: Any = self._model
        self._is_kept = layers or (-1,)

        def note(_: nn.Module, __: tuple[Tensor, ...], output: Any) -> None:
            self._kept[-1] = output[0][0]

        def note_input(index: int, _: nn.Module, rows: tuple[Tensor, ...]) -> None:
            self._kept[index] = rows[0][0]

        if not layers:
            model.base_model.register_forward_hook(note)
        for index in set(layers):
            layer = model.base_model.layers[index]
            layer.register_forward_pre_hook(partial(note_input, index))

    @property
    def hidden(self) -> Tensor | None:
        """See `ModelForward`."""
        if not self._kept:
            return None
        kept = [self._kept[index] for index in self._is_kept]
        return kept[0] if len(kept) == 1 else torch.cat(kept, dim=-1)


def input_ids(
    sequences: Sequence[SequenceRows], device: torch.device, drawn_ids: Tensor | None
) -> Tensor:
    """[R] ids of all rows, on the device."""
    if drawn_ids is not None:
        return drawn_ids
    return to_device([token for rows in sequences for token in rows.token_ids], device)


def last_rows(sequences: Sequence[SequenceRows]) -> list[int]:
    """Return the rows of a pass that need logits: each sequence's last `num_logits`."""
    rows: list[int] = []
    stop = 0
    for sequence in sequences:
        stop += len(sequence.token_ids)
        rows.extend(range(stop - sequence.num_logits, stop))
    return rows
