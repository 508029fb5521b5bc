"""Finding a paged attention kernel that works here, by trying it; the supported torch range.

Torch from 2.11 to 2.13 is supported, by what it can do and not by its number. All of them have
`varlen_attn`; block tables, key counts and `num_splits` came to its signature by 2.12. What stands
behind it is another question: the built-in FlashAttention 2 takes pages of a multiple of 256
tokens at best (`block_size: 256`) and refused block tables at first; FlashAttention 3 (Hopper,
package `flash_attn_interface`) takes pages of any size, and 4 reads pages on Blackwell only
(pytorch pull requests 175924, 176905, 179760; flash-attention issue 1627). They are switched by
`torch.nn.attention.activate_flash_attention_impl`, for the whole process. So each candidate runs a
small ragged pass with the model's own sizes and must agree with the reference; where none does,
the model is served by the gathering back-end, `models/attention/gather.py`, which needs no kernel.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

import torch
from torch import Tensor

from models.gpu.indices import PassTensors, exact_shape, index_pass
from models.gpu.kernel import KernelCall, VarlenFunction, VarlenKernel
from models.gpu.reference import reference_kernel
from models.kv.pages import PageStorage
from models.kv.rows import BlockList, SequenceRows
from models.kv.storage import KVSizes

_NEEDED_ARGUMENTS = ("seqused_k", "block_table", "num_splits", "enable_gqa", "window_size")
# Relative to values around 1 in bfloat16, whose step is 2^-8; a wrong page or mask is off by ~1.
_TOLERANCE = 0.03
_PROBE_KEYS = ((0, 3), (37, 5), (90, 1))  # (start, rows) of the sessions, three pages and more
_PROBE_WINDOW = 20


@dataclass(frozen=True, slots=True)
class AttentionSizes:
    """What a kernel must be able to do for one model."""

    num_heads: int
    num_key_heads: int
    head_dim: int
    block_size: int
    dtype: torch.dtype


class NoKernel(Exception):
    """No kernel here computes paged attention for these sizes; the message says what was tried."""


@dataclass(frozen=True, slots=True)
class VarlenFeatures:
    """The parts of torch that are looked for; tests put others in their place."""

    function: VarlenFunction | None  # varlen_attn
    aux_request: Any  # AuxRequest(lse=True)
    implementations: Sequence[str]  # that can be activated, best first
    activate: Callable[[str], None]
    restore: Callable[[], None]


def torch_features(device: torch.device) -> VarlenFeatures:
    """What this torch has for this CUDA device."""
    from torch.nn import attention as torch_attention

    function, aux_request = None, None
    try:
        from torch.nn.attention import varlen

        function = varlen.varlen_attn
        aux_request = varlen.AuxRequest(lse=True)
    except (ImportError, AttributeError):
        pass
    listed: list[str] = getattr(torch_attention, "list_flash_attention_impls", list)()
    major, _ = torch.cuda.get_device_capability(device)
    wanted = {9: ["FA3"], 10: ["FA4"]}.get(major, [])
    return VarlenFeatures(
        function=function,
        aux_request=aux_request,
        implementations=[name for name in wanted if name in listed],
        activate=getattr(torch_attention, "activate_flash_attention_impl", _cannot_activate),
        restore=getattr(torch_attention, "restore_flash_attention_impl", _nothing_to_restore),
    )


def find_kernel(
    features: VarlenFeatures, sizes: AttentionSizes, device: torch.device
) -> VarlenKernel:
    """The first kernel that agrees with the reference on this device, its implementation active.

    Raises:
        NoKernel: there is none.
    """
    function = features.function
    if function is None:
        raise NoKernel(f"torch {torch.__version__} has no varlen_attn")
    known = inspect.signature(function).parameters
    missing = [name for name in _NEEDED_ARGUMENTS if name not in known]
    if missing:
        raise NoKernel(f"varlen_attn of torch {torch.__version__} lacks {', '.join(missing)}")
    complaints = []
    for name in (*features.implementations, None):
        try:
            if name is not None:
                features.activate(name)
            return _working_kernel(features, function, sizes, device, name or "built-in")
        except (NoKernel, ImportError, RuntimeError, ValueError, TypeError) as error:
            complaints.append(f"{name or 'built-in'}: {error}")
            if name is not None:
                features.restore()
    raise NoKernel("; ".join(complaints))


def _working_kernel(
    features: VarlenFeatures,
    function: VarlenFunction,
    sizes: AttentionSizes,
    device: torch.device,
    name: str,
) -> VarlenKernel:
    """The kernel in the way of calling that works.

    Raises:
        NoKernel: none does.
    """
    complaints = []
    for wants_cumulative_keys in (False, True):
        kernel = VarlenKernel(function, features.aux_request, wants_cumulative_keys, name)
        try:
            complaint = probe(kernel, sizes, device)
        except (RuntimeError, ValueError, TypeError, NotImplementedError) as error:
            complaint = str(error).strip().splitlines()[0] if str(error).strip() else repr(error)
        if not complaint:
            return kernel
        complaints.append(complaint)
    raise NoKernel(" / ".join(dict.fromkeys(complaints)))


def probe(kernel: VarlenKernel, sizes: AttentionSizes, device: torch.device) -> str:
    """What is wrong with the kernel's results on a small ragged pass over scattered pages, or "".

    All pages hold other random keys, so that a wrong page, a wrong mask or a transposed
    log-sum-exp is noticed.
    """
    storage, tensors, query = _probe_pass(sizes, device)
    keys, values = storage.blocks[0]
    for window in (None, _PROBE_WINDOW):
        call = KernelCall(
            max_rows=max(count for _, count in _PROBE_KEYS),
            max_keys=max(start + count for start, count in _PROBE_KEYS),
            scale=sizes.head_dim**-0.5,
            window=window,
            with_lse=True,
        )
        out, log_sum = kernel(query, keys, values, tensors, call)
        wanted, wanted_sum = reference_kernel()(query, keys, values, tensors, call)
        for what, got, expected in (
            ("attention", out, wanted),
            ("log-sum-exp", log_sum, wanted_sum),
        ):
            if got.shape != expected.shape:
                return f"{what} is {tuple(got.shape)}, not {tuple(expected.shape)}"
            error = float((got.float() - expected.float()).abs().max())
            if not error <= _TOLERANCE:
                return f"{what} is off by {error:.3g} with window {window}"
    return ""


def _probe_pass(
    sizes: AttentionSizes, device: torch.device
) -> tuple[PageStorage, PassTensors, Tensor]:
    """Sessions on scattered pages that are full of random keys, and random queries."""
    ends = [start + count for start, count in _PROBE_KEYS]
    needs = [-(-end // sizes.block_size) for end in ends]
    num_blocks = sum(needs) + 1
    storage = PageStorage(
        KVSizes(
            num_layers=1,
            num_blocks=num_blocks,
            block_size=sizes.block_size,
            num_heads=sizes.num_key_heads,
            head_dim=sizes.head_dim,
            dtype=sizes.dtype,
            device=device,
        )
    )
    generator = torch.Generator().manual_seed(0)
    for part in storage.blocks[0]:
        part.copy_(torch.randn(part.shape, generator=generator))
    free = torch.randperm(num_blocks, generator=generator).tolist()
    tables = [
        BlockList([free.pop() for _ in range(need)], end)
        for end, need in zip(ends, needs, strict=True)
    ]
    sequences = [
        SequenceRows(table, start, [0] * count, 0)
        for (start, count), table in zip(_PROBE_KEYS, tables, strict=True)
    ]
    shape = exact_shape(sequences, sizes.block_size)
    arrays = index_pass(sequences, shape, sizes.block_size, storage.null_block)
    longs, ints = (torch.from_numpy(array).to(device) for array in arrays)
    query = torch.randn(shape.num_rows, sizes.num_heads, sizes.head_dim, generator=generator)
    return storage, PassTensors.cut(shape, longs, ints), query.to(device, sizes.dtype)


def _cannot_activate(name: str) -> NoReturn:
    raise NoKernel(f"torch {torch.__version__} cannot activate {name}")


def _nothing_to_restore() -> None:
    return None
