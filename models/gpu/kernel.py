"""Paged attention by one kernel call per layer: the GPU path of `attention.interface`.

torch's `varlen_attn` (`torch.nn.attention.varlen`) attends ragged query rows to keys that lie in
pages, through a block table. Nothing is gathered and nothing is padded. Which builds and devices
have a kernel that does this correctly is found out in `models/gpu/probe.py`.

Layers may ask for windows, which are the kernel's own. They may ask for sinks, which are applied
after it from its log-sum-exp (`add_sinks`). Soft-capped scores need the reference path.

Shape letters: R rows, S sessions, H query heads, K key heads, D head size, W blocks per session.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from models.attention.features import AttentionFeatures
from models.gpu.indices import PassTensors
from models.kv.pages import PageStorage

VarlenFunction = Callable[..., Any]  # `varlen_attn`'s signature


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelCall:
    """The terms of one call of a kernel."""

    max_rows: int  # no session has more rows
    max_keys: int  # no session has more keys
    scale: float
    window: int | None = None  # last positions a row sees, its own included; None: all
    with_lse: bool = False  # the log-sum-exp as well


@dataclass(frozen=True, slots=True)
class VarlenKernel:
    """A function with `varlen_attn`'s signature and how it wants to be called.

    Attributes:
        function: `torch.nn.attention.varlen.varlen_attn`, or `reference_varlen_attn`.
        aux_request: what `return_aux` takes to ask for the log-sum-exp; None: it cannot.
        wants_cumulative_keys: whether `cu_seq_k` must be there although key counts are; kernels
            differ, and some refuse it beside a block table.
        name: for logs.
        reads_unwritten: whether a NaN in a slot that nobody has written spoils results.
        opens_steps: whether later keys are left open where no session has more than one row. There
            are none, so the result is the same. FlashAttention 2 reads keys once for all query
            heads of a group only then.
    """

    function: VarlenFunction
    aux_request: Any
    wants_cumulative_keys: bool
    name: str
    reads_unwritten: bool = False
    opens_steps: bool = False

    def __call__(
        self,
        query: Tensor,  # [R, H, D]
        keys: Tensor,  # [pages, block_size, K, D]
        values: Tensor,  # [pages, block_size, K, D]
        tensors: PassTensors,
        wanted: KernelCall,
    ) -> Any:
        """Attention [R, H, D]; `with_lse` a pair of it and the log-sum-exp, [H, R].

        The last row of a session is its last key, and no row sees a later one. Keys are never split
        among blocks of threads (`num_splits=1`), so a row's result does not depend on the other
        sessions. Besides, torch's kernels for split keys in pages have given wrong results (pytorch
        issue 194167, torchtitan issue 3235).
        """
        asked = {"return_aux": self.aux_request} if wanted.with_lse else {}
        window = wanted.window
        is_open = self.opens_steps and wanted.max_rows == 1 and window is None
        return self.function(
            query,
            keys,
            values,
            tensors.cumulative_rows,
            tensors.cumulative_keys if self.wants_cumulative_keys else None,
            wanted.max_rows,
            wanted.max_keys,
            scale=wanted.scale,
            window_size=(-1 if window is None else window - 1, -1 if is_open else 0),
            enable_gqa=query.shape[1] != keys.shape[2],
            seqused_k=tensors.num_keys,
            block_table=tensors.block_table,
            num_splits=1,
            **asked,
        )


@dataclass(frozen=True, slots=True)
class VarlenPass:
    """Implements `AttentionPass` by calls of a kernel."""

    storage: PageStorage
    kernel: VarlenKernel
    tensors: PassTensors
    max_rows: int  # rows of one session
    max_keys: int  # keys of one session
    windows: tuple[int | None, ...] = ()  # each layer's window, by the checkpoint's config

    @property
    def row_slots(self) -> Tensor:
        """Slot of each row's key and value, [R]."""
        return self.tensors.row_slots

    def store(self, layer: int, key: Tensor, value: Tensor) -> None:
        """Store the rows' keys and values [K, R, D]."""
        self.storage.write(layer, self.row_slots, torch.stack((key, value)))

    def attend(
        self,
        layer: int,
        query: Tensor,  # [R, H, D]
        features: AttentionFeatures,
    ) -> Tensor:  # [R, H, D]
        """Attention of every row to the stored keys of its session.

        Raises:
            ValueError: scores are soft-capped, which the kernel cannot do.
        """
        if features.softcap is not None:
            raise ValueError("the varlen kernel cannot soft-cap; attention must be reference")
        sinks = features.sinks
        keys, values = self.storage.blocks[layer]
        result = self.kernel(
            query,
            keys,
            values,
            self.tensors,
            KernelCall(
                max_rows=self.max_rows,
                max_keys=self.max_keys,
                scale=features.scale,
                window=features.window,
                with_lse=sinks is not None,
            ),
        )
        if sinks is None:
            return result
        out, log_sum = result
        return add_sinks(out, log_sum, sinks)


def add_sinks(
    out: Tensor,  # [R, H, D] attention without sinks
    log_sum: Tensor,  # [H, R] float32, log of the sum of exp(score) over the keys a row saw
    sinks: Tensor,  # [H]
) -> Tensor:  # [R, H, D]
    """Correct the attention for one more key per head, of value 0.

    That key takes exp(sink) of the sum and gives nothing. So all outputs shrink by sum / (sum +
    exp(sink)), which is sigmoid(log(sum) - sink).
    """
    share = torch.sigmoid(log_sum.T - sinks.float())  # [R, H]
    return (out.float() * share.unsqueeze(-1)).to(out.dtype)
