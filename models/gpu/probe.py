"""Finding a paged attention kernel that works here, by trying it; the supported torch range.

Torch from 2.11 to 2.13 is supported, by what it can do and not by its number. All of them have
`varlen_attn`; block tables, key counts and `num_splits` came to its signature by 2.12. The
implementation behind it varies. The built-in FlashAttention 2 takes pages of a multiple of 256
tokens at best (`block_size: 256`). It refused block tables at first. FlashAttention 3 (Hopper,
package `flash_attn_interface`) takes pages of any size. FlashAttention 4 reads pages on Blackwell
only (pytorch pull requests 175924, 176905, 179760; flash-attention issue 1627). They are switched
by `torch.nn.attention.activate_flash_attention_impl`, for the whole process. The last candidate is
our own Triton kernel (`kernels/attention.py`), which any torch has. Each candidate runs small
ragged passes with the model's own heads, at each possible page size. It must agree with the
reference. If none does, the gathering back-end, `models/attention/gather.py`, serves the model; it
needs no kernel.

The data is chosen by the page size, so that every table has several pages. A kernel that reads only
the first page of each session would be right on any shorter session. Kernels choose other code if
no session has more than one row, and by the number of rows. So there are passes of one row each, of
more than 64 and padded ones. FlashAttention 2 has such code only if later keys are left open. They
are where that changes no bit, because a step and a round must agree.
"""

from __future__ import annotations

import dataclasses
import inspect
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, NoReturn

import torch
from torch import Tensor

from models.gpu.indices import PassShape, PassTensors, exact_shape, index_pass
from models.gpu.kernel import KernelCall, VarlenFunction, VarlenKernel
from models.gpu.reference import reference_kernel
from models.kv.pages import PageStorage
from models.kv.rows import BlockList, SequenceRows
from models.kv.storage import KVSizes
from models.torch_library import has_kernels

BUILT_IN, OWN = "built-in", "Triton"  # names of kernels
_NEEDED_ARGUMENTS = ("seqused_k", "block_table", "num_splits", "enable_gqa", "window_size")
# Relative to values around 1 in bfloat16, whose step is 2^-8; a wrong page or mask is off by ~1.
_TOLERANCE = 0.03
_SCALE_SHARE = 0.6  # part of the usual scale: a scale that a kernel ignores is noticed
_SPARE_PAGES = 3  # pages of no session


class _ProbePass(NamedTuple):
    """A pass to try a kernel with: start and rows of each session, and rows to pad it to."""

    name: str
    rows: Sequence[tuple[int, int]]
    num_rows: int = 0  # 0: it is not padded


@dataclass(frozen=True, slots=True)
class AttentionSizes:
    """The sizes that a kernel must support for one model."""

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
    own: VarlenFunction | None = None  # our kernel with the same signature, the last to be tried


def torch_features(device: torch.device) -> VarlenFeatures:
    """Return the features of this torch for this CUDA device."""
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
        own=_own_function(device),
    )


def _own_function(device: torch.device) -> VarlenFunction | None:
    if not has_kernels(device):
        return None
    from models.gpu.kernels.attention import paged_varlen_attn

    return paged_varlen_attn


def find_kernel(
    features: VarlenFeatures, sizes: Sequence[AttentionSizes], device: torch.device
) -> tuple[VarlenKernel, AttentionSizes]:
    """Find the first kernel that agrees with the reference on this device; make it active.

    Args:
        features: what torch has.
        sizes: those that would do, the best first; they differ in their pages.
        device: to try kernels on.

    Returns:
        The kernel, and the first of `sizes` that it works for.

    Raises:
        NoKernel: there is none.
        torch.OutOfMemoryError: the device is too full to try them; which says nothing of kernels.
    """
    complaints: list[str] = []
    for name, function in _candidates(features, complaints):
        is_switched = name in features.implementations
        try:
            if is_switched:
                features.activate(name)
            return _working_kernel(features, function, sizes, device, name)
        except torch.OutOfMemoryError:
            raise
        except (NoKernel, ImportError, RuntimeError, ValueError, TypeError) as error:
            complaints.append(f"{name}: {error}")
            if is_switched:
                features.restore()
    raise NoKernel("; ".join(complaints))


def _candidates(
    features: VarlenFeatures, complaints: list[str]
) -> Iterator[tuple[str, VarlenFunction]]:
    """Names and functions in the order in which they are tried; adds why torch's is not."""
    function = features.function
    if function is None:
        complaints.append(f"torch {torch.__version__} has no varlen_attn")
    else:
        known = inspect.signature(function).parameters
        missing = [name for name in _NEEDED_ARGUMENTS if name not in known]
        if missing:
            lacks = ", ".join(missing)
            complaints.append(f"varlen_attn of torch {torch.__version__} lacks {lacks}")
        else:
            yield from ((name, function) for name in (*features.implementations, BUILT_IN))
    if features.own is not None:
        yield OWN, features.own


def _working_kernel(
    features: VarlenFeatures,
    function: VarlenFunction,
    sizes: Sequence[AttentionSizes],
    device: torch.device,
    name: str,
) -> tuple[VarlenKernel, AttentionSizes]:
    """Return the kernel in the way of calling that works.

    Raises:
        NoKernel: none does.
    """
    complaints: dict[str, list[int]] = {}
    for each in sizes:
        for wants_cumulative_keys in (False, True):
            kernel = VarlenKernel(function, features.aux_request, wants_cumulative_keys, name)
            complaint = _complaint(kernel, each, device, unwritten=math.nan)
            if complaint:  # maybe only because of what nobody has written
                kernel = dataclasses.replace(kernel, reads_unwritten=True)
                complaint = _complaint(kernel, each, device, unwritten=0.0)
            if not complaint:
                return _opened(kernel, each, device), each
            complaints.setdefault(complaint, []).append(each.block_size)
    raise NoKernel(
        " / ".join(
            f"with pages of {', '.join(map(str, dict.fromkeys(pages)))}: {complaint}"
            for complaint, pages in complaints.items()
        )
    )


def _opened(kernel: VarlenKernel, sizes: AttentionSizes, device: torch.device) -> VarlenKernel:
    """Return the kernel so that it opens steps, if it can and their bits stay as they are."""
    opened = dataclasses.replace(kernel, opens_steps=True)
    planned = _decode_pass(sizes.block_size)
    unwritten = 0.0 if kernel.reads_unwritten else math.nan
    storage, tensors, query = _made(planned, sizes, device, unwritten)
    keys, values = storage.blocks[0]
    for with_lse in (False, True):
        call = dataclasses.replace(_call_of(planned, sizes, None), with_lse=with_lse)
        try:
            both = [each(query, keys, values, tensors, call) for each in (kernel, opened)]
        except torch.OutOfMemoryError:
            raise
        except (RuntimeError, ValueError, TypeError, NotImplementedError):
            return kernel
        before, after = both if with_lse else ((one,) for one in both)
        if not all(map(torch.equal, before, after)):
            return kernel
    return opened


def _complaint(
    kernel: VarlenKernel, sizes: AttentionSizes, device: torch.device, *, unwritten: float
) -> str:
    try:
        return probe(kernel, sizes, device, unwritten=unwritten)
    except torch.OutOfMemoryError:
        raise
    except (RuntimeError, ValueError, TypeError, NotImplementedError) as error:
        return str(error).strip().splitlines()[0] if str(error).strip() else repr(error)


def probe(
    kernel: VarlenKernel, sizes: AttentionSizes, device: torch.device, *, unwritten: float = 0.0
) -> str:
    """Return the errors of the kernel on small ragged passes over scattered pages, or "".

    All pages hold other random keys, so that a wrong page, a wrong mask or a transposed log-sum-exp
    is noticed. Unwritten slots hold `unwritten`.
    """
    size = sizes.block_size
    for planned in _probe_passes(size):
        storage, tensors, query = _made(planned, sizes, device, unwritten)
        keys, values = storage.blocks[0]
        for window in (None, size // 2 + 4, size + 7):
            call = _call_of(planned, sizes, window)
            got = kernel(query, keys, values, tensors, call)
            wanted = _wanted(query, keys, values, tensors, call)
            if complaint := _difference(got, wanted):
                return f"{complaint} in {planned.name} with window {window}"
    return ""


def _wanted(
    query: Tensor, keys: Tensor, values: Tensor, tensors: PassTensors, call: KernelCall
) -> tuple[Tensor, Tensor]:
    """Return the reference's results, head by head: of all heads it copies keys by gigabytes."""
    group = query.shape[1] // keys.shape[2]
    parts = []
    for head, own in enumerate(query.split(1, dim=1)):
        its = slice(head // group, head // group + 1)
        parts.append(reference_kernel()(own, keys[:, :, its], values[:, :, its], tensors, call))
    outs, log_sums = zip(*parts, strict=True)
    return torch.cat(outs, dim=1), torch.cat(log_sums)


def _probe_passes(size: int) -> tuple[_ProbePass, ...]:
    """Passes for pages of `size` tokens."""
    return (
        _ProbePass(
            "a mixed pass",
            ((0, 3), (2 * size + size // 2, 5), (max(0, size - 5), 70), (3 * size - 1, 1)),
        ),
        _decode_pass(size),
        _ProbePass("a padded pass", ((2 * size + 3, 1), (size - 2, 4)), num_rows=8),
    )


def _decode_pass(size: int) -> _ProbePass:
    return _ProbePass("a decode pass", ((0, 1), (size, 1), (2 * size + 3, 1)))


def _most_rows(planned: _ProbePass) -> int:
    return max(count for _, count in planned.rows)


def _call_of(planned: _ProbePass, sizes: AttentionSizes, window: int | None) -> KernelCall:
    longest = max(start + count for start, count in planned.rows)
    return KernelCall(
        max_rows=_most_rows(planned),
        max_keys=4 * sizes.block_size if planned.num_rows else longest,
        scale=_SCALE_SHARE * sizes.head_dim**-0.5,
        window=window,
        with_lse=True,
    )


def _difference(got: tuple[Tensor, Tensor], wanted: tuple[Tensor, Tensor]) -> str:
    for what, ours, expected in zip(("attention", "log-sum-exp"), got, wanted, strict=True):
        if ours.shape != expected.shape:
            return f"{what} is {tuple(ours.shape)}, not {tuple(expected.shape)}"
        error = float((ours.float() - expected.float()).abs().max())
        if not error <= _TOLERANCE:
            return f"{what} is off by {error:.3g}"
    return ""


def _made(
    planned: _ProbePass, sizes: AttentionSizes, device: torch.device, unwritten: float
) -> tuple[PageStorage, PassTensors, Tensor]:
    """Sessions on scattered pages that are full of random keys, and random queries."""
    size = sizes.block_size
    ends = [start + count for start, count in planned.rows]
    needs = [-(-end // size) for end in ends]
    num_blocks = sum(needs) + _SPARE_PAGES
    storage = PageStorage(
        KVSizes(
            num_layers=1,
            num_blocks=num_blocks,
            block_size=size,
            num_heads=sizes.num_key_heads,
            head_dim=sizes.head_dim,
            dtype=sizes.dtype,
            device=device,
        )
    )
    generator = torch.Generator().manual_seed(0)
    free = torch.randperm(num_blocks, generator=generator).tolist()
    tables = [
        BlockList([free.pop() for _ in range(need)], end)
        for end, need in zip(ends, needs, strict=True)
    ]
    for part in storage.blocks[0]:
        pages = torch.randn(part.shape, generator=generator)
        pages[free] = unwritten
        for table, end in zip(tables, ends, strict=True):
            pages[table.block_ids[-1], (end - 1) % size + 1 :] = unwritten
        part.copy_(pages)
    sequences = [
        SequenceRows(table, start, [0] * count, 0)
        for (start, count), table in zip(planned.rows, tables, strict=True)
    ]
    shape = exact_shape(sequences, size)
    if planned.num_rows:
        # One more session has the padded rows, and one has none.
        num_sessions, session_rows = shape.num_sessions + 2, _most_rows(planned)
        shape = PassShape(planned.num_rows, num_sessions, shape.table_width, session_rows)
    arrays = index_pass(sequences, shape, size, storage.null_block)
    longs, ints = (torch.from_numpy(array).to(device) for array in arrays)
    query = torch.randn(shape.num_rows, sizes.num_heads, sizes.head_dim, generator=generator)
    return storage, PassTensors.cut(shape, longs, ints), query.to(device, sizes.dtype)


def _cannot_activate(name: str) -> NoReturn:
    raise NoKernel(f"torch {torch.__version__} cannot activate {name}")


def _nothing_to_restore() -> None:
    return None
