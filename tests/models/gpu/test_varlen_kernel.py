"""A kernel is taken only if it is there, takes the arguments, and computes the right thing."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import wraps
from typing import Any

import pytest
import torch
from torch.nn.attention import varlen
from torch.utils._python_dispatch import TorchDispatchMode

from models.config import GPU_BLOCKS
from models.gpu.indices import PassShape, PassTensors
from models.gpu.kernel import KernelCall, VarlenFunction, VarlenKernel
from models.gpu.probe import AttentionSizes, NoKernel, VarlenFeatures, find_kernel, probe
from models.gpu.reference import reference_kernel, reference_varlen_attn

CPU = torch.device("cpu")


def sizes(block_size: int = 16) -> AttentionSizes:
    return AttentionSizes(
        num_heads=4, num_key_heads=2, head_dim=16, block_size=block_size, dtype=torch.bfloat16
    )


SIZES = [sizes()]


def kernel_of(function: VarlenFunction, *block_sizes: int) -> VarlenKernel:
    tried = [sizes(size) for size in block_sizes] or SIZES
    return find_kernel(Switch(function).features, tried, CPU)[0]


class Switch:
    """Stands for torch's switch between implementations."""

    def __init__(self, function: VarlenFunction | None, *names: str) -> None:
        self.active: str | None = None
        self.features = VarlenFeatures(
            function=function,
            aux_request=varlen.AuxRequest(lse=True),
            implementations=names,
            activate=self._activate,
            restore=self._restore,
        )

    def _activate(self, name: str) -> None:
        if name == "not installed":
            raise ImportError("No module named 'flash_attn_interface'")
        self.active = name

    def _restore(self) -> None:
        self.active = None


def test_the_reference_passes_its_own_probe():
    for block_size in (16, 64, 128, 256):
        assert probe(reference_kernel(), sizes(block_size), CPU, unwritten=math.nan) == ""


def test_the_built_in_kernel_is_taken_where_it_works():
    switch = Switch(reference_varlen_attn)
    kernel, found = find_kernel(switch.features, SIZES, CPU)
    assert (kernel.name, kernel.wants_cumulative_keys) == ("built-in", False)
    assert not kernel.reads_unwritten
    assert found == SIZES[0]


@pytest.mark.parametrize(
    ("implementation", "taken", "active"),
    [("FA3", "FA3", "FA3"), ("not installed", "built-in", None)],
)
def test_an_implementation_is_tried_before_and_stays_active_where_it_is_installed(
    implementation: str, taken: str, active: str | None
):
    switch = Switch(reference_varlen_attn, implementation)
    assert find_kernel(switch.features, SIZES, CPU)[0].name == taken
    assert switch.active == active


def test_one_that_fails_is_switched_off_again():
    switch = Switch(None, "FA3")

    def only_built_in(args: list[Any], kwargs: Any) -> Any:
        if switch.active == "FA3":
            raise RuntimeError("FA3 flash_attention forward unsupported")
        return right(args, kwargs)

    features = replace(switch.features, function=wrapped(only_built_in))
    assert find_kernel(features, SIZES, CPU)[0].name == "built-in"
    assert switch.active is None


def wrapped(change: Any) -> VarlenFunction:
    """Return a function with the reference's signature that does something else."""

    @wraps(reference_varlen_attn)
    def function(*args: Any, **kwargs: Any) -> Any:
        return change(list(args), kwargs)

    return function


def test_a_kernel_that_wants_cumulative_keys_gets_them():
    def strict(args: list[Any], kwargs: Any) -> Any:
        if args[4] is None:
            raise RuntimeError("cu_seqlens_k is needed")
        assert torch.equal(args[4].diff(), kwargs["seqused_k"])
        return reference_varlen_attn(*args, **kwargs)

    assert kernel_of(wrapped(strict)).wants_cumulative_keys


def ignores_window(args: list[Any], kwargs: Any) -> Any:
    return reference_varlen_attn(*args, **{**kwargs, "window_size": (-1, 0)})


def ignores_causality(args: list[Any], kwargs: Any) -> Any:
    left, _ = kwargs["window_size"]
    return reference_varlen_attn(*args, **{**kwargs, "window_size": (left, -1)})


def ignores_scale(args: list[Any], kwargs: Any) -> Any:
    return reference_varlen_attn(*args, **{**kwargs, "scale": None})


def ignores_table(args: list[Any], kwargs: Any) -> Any:
    table = torch.arange(kwargs["block_table"].numel()) % args[1].shape[0]
    table = table.view_as(kwargs["block_table"])
    return reference_varlen_attn(*args, **{**kwargs, "block_table": table})


def reads_first_page_only(args: list[Any], kwargs: Any) -> Any:
    table = kwargs["block_table"][:, :1].expand_as(kwargs["block_table"])
    return reference_varlen_attn(*args, **{**kwargs, "block_table": table})


def is_wrong_in_decode_passes(args: list[Any], kwargs: Any) -> Any:
    return reads_first_page_only(args, kwargs) if args[5] == 1 else right(args, kwargs)


def forgets_rows_behind_64(args: list[Any], kwargs: Any) -> Any:
    out, log_sum = reference_varlen_attn(*args, **kwargs)
    counts = args[3].diff()
    for first, count in zip(args[3].tolist(), counts.tolist(), strict=False):
        out[first + 64 : first + count] = 0.0
    return out, log_sum


def trips_over_padding(args: list[Any], kwargs: Any) -> Any:
    out, log_sum = reference_varlen_attn(*args, **kwargs)
    if args[6] > int(kwargs["seqused_k"].max()):  # more keys than any session has
        out = out.roll(1, 0)
    return out, log_sum


def forgets_rows(args: list[Any], kwargs: Any) -> Any:
    out, log_sum = reference_varlen_attn(*args, **kwargs)
    out[-1] = float("nan")
    return out, log_sum


def turns_log_sum(args: list[Any], kwargs: Any) -> Any:
    out, log_sum = reference_varlen_attn(*args, **kwargs)
    return out, log_sum.T


def right(args: list[Any], kwargs: Any) -> Any:
    return reference_varlen_attn(*args, **kwargs)


@pytest.mark.parametrize("block_size", [16, 64, 128, 256])
@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        (ignores_window, "attention is off by .* with window"),
        (ignores_causality, "attention is off by .* in a mixed pass with window None"),
        (ignores_scale, "attention is off by"),
        (ignores_table, "attention is off by"),
        (reads_first_page_only, "attention is off by .* in a mixed pass"),
        (is_wrong_in_decode_passes, "attention is off by .* in a decode pass"),
        (forgets_rows_behind_64, "attention is off by .* in a mixed pass"),
        (trips_over_padding, "attention is off by .* in a padded pass"),
        (forgets_rows, "attention is off by nan"),
        (turns_log_sum, r"log-sum-exp is \(79, 4\), not \(4, 79\)"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_a_kernel_that_is_wrong_is_refused(change: Any, complaint: str, block_size: int):
    with pytest.raises(NoKernel, match=complaint):
        kernel_of(wrapped(change), block_size)


def spoilt_by_nan(args: list[Any], kwargs: Any) -> Any:
    """What hidden keys have is multiplied by 0."""
    out, log_sum = reference_varlen_attn(*args, **kwargs)
    pages = args[2][kwargs["block_table"].long()]
    return out + 0.0 * pages.sum(), log_sum


def test_a_kernel_that_reads_what_nobody_has_written_is_known_for_it():
    assert kernel_of(wrapped(spoilt_by_nan)).reads_unwritten
    assert not kernel_of(wrapped(right)).reads_unwritten


def pages_of(multiple: int) -> VarlenFunction:
    def only(args: list[Any], kwargs: Any) -> Any:
        if args[1].shape[1] % multiple:
            raise RuntimeError(f"Paged KV cache block size must be divisible by {multiple}")
        return right(args, kwargs)

    return wrapped(only)


@pytest.mark.parametrize(("multiple", "expected"), [(1, 64), (128, 128), (256, 256)])
def test_the_first_page_size_that_works_is_taken(multiple: int, expected: int):
    tried = [sizes(size) for size in GPU_BLOCKS]
    _, found = find_kernel(Switch(pages_of(multiple)).features, tried, CPU)
    assert found.block_size == expected


def test_all_that_was_tried_is_said():
    with pytest.raises(NoKernel, match=r"pages of 16, 64: .* divisible by 256"):
        kernel_of(pages_of(256), 16, 64)


def test_a_torch_without_the_function_has_no_kernel():
    with pytest.raises(NoKernel, match="has no varlen_attn"):
        find_kernel(Switch(None).features, SIZES, CPU)


def older(query: Any, key: Any, value: Any, *, scale: Any = None, window_size: Any = None):
    raise AssertionError("must not be called")


def test_a_signature_without_block_tables_is_named():
    with pytest.raises(NoKernel, match="lacks seqused_k, block_table, num_splits, enable_gqa"):
        find_kernel(Switch(older).features, SIZES, CPU)


def test_our_own_kernel_serves_where_torch_has_none():
    for function in (None, older, pages_of(512)):
        features = replace(Switch(function).features, own=reference_varlen_attn)
        assert find_kernel(features, SIZES, CPU)[0].name == "Triton"
    features = replace(Switch(reference_varlen_attn).features, own=reference_varlen_attn)
    assert find_kernel(features, SIZES, CPU)[0].name == "built-in"
    with pytest.raises(NoKernel, match=r"has no varlen_attn; Triton: .* divisible by 512"):
        find_kernel(replace(Switch(None).features, own=pages_of(512)), SIZES, CPU)


def test_the_installed_torch_has_the_signature_but_no_cpu_kernel():
    with pytest.raises(NoKernel, match="built-in: "):
        find_kernel(Switch(varlen.varlen_attn).features, SIZES, CPU)


def asked_for(function: VarlenFunction, *, num_rows: int, window: int | None) -> tuple[int, int]:
    """The window that a pass of a session's last rows asks a found kernel for."""
    asked: list[tuple[int, int]] = []

    def noting(args: list[Any], kwargs: Any) -> Any:
        asked.append(kwargs["window_size"])
        return function(*args, **kwargs)

    kernel = kernel_of(wrapped(noting))
    tensors = PassTensors.cut(
        PassShape(num_rows, 1, 1),
        torch.zeros(3 * num_rows, dtype=torch.int64),
        torch.tensor([0, num_rows, 0, 9, 9, 0], dtype=torch.int32),
    )
    query = torch.ones(num_rows, 4, 16, dtype=torch.bfloat16)
    keys = torch.ones(1, 16, 2, 16, dtype=torch.bfloat16)
    kernel(
        query,
        keys,
        keys,
        tensors,
        KernelCall(max_rows=num_rows, max_keys=16, scale=1.0, window=window),
    )
    return asked[-1]


def differs_where_open(args: list[Any], kwargs: Any) -> Any:
    """As a kernel whose tiles depend on the window: right, and one bit of a value is another."""
    out, *others = reference_varlen_attn(*args, **{**kwargs, "return_aux": True})
    if kwargs["window_size"][1] < 0:
        out.view(torch.int16)[0, 0, 0] ^= 1
    return (out, *others) if kwargs.get("return_aux") else out


def refuses_later_keys(args: list[Any], kwargs: Any) -> Any:
    if kwargs["window_size"][1] != 0:
        raise ValueError("rows see no later keys here")
    return reference_varlen_attn(*args, **kwargs)


def test_a_step_leaves_later_keys_open_and_reads_keys_once_a_group():
    function = reference_varlen_attn
    assert asked_for(function, num_rows=1, window=None) == (-1, -1)
    assert asked_for(function, num_rows=2, window=None) == (-1, 0), "a round's rows have later ones"
    assert asked_for(function, num_rows=1, window=5) == (4, 0)


@pytest.mark.parametrize("change", [differs_where_open, refuses_later_keys])
def test_steps_stay_bounded_where_a_bit_would_change(change: Any):
    assert asked_for(wrapped(change), num_rows=1, window=None) == (-1, 0)


class Largest(TorchDispatchMode):
    """The bytes of the largest tensor that an operation gave."""

    num_bytes = 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        if isinstance(result, torch.Tensor):
            self.num_bytes = max(self.num_bytes, result.nbytes)
        return result


def test_a_probe_of_a_model_of_7b_takes_little_memory_beside_its_weights():
    """Its heads and pages; the reference alone would copy 940 MB of keys at a time."""

    def wrong(args: list[Any], kwargs: Any) -> Any:
        return torch.zeros_like(args[0]), torch.zeros(28, len(args[0]))

    wanted = AttentionSizes(
        num_heads=28, num_key_heads=4, head_dim=128, block_size=256, dtype=torch.bfloat16
    )
    kernel = VarlenKernel(wrapped(wrong), True, wants_cumulative_keys=False, name="wrong")
    with Largest() as largest:
        assert "attention is off" in probe(kernel, wanted, CPU)
    assert largest.num_bytes < 40e6


def test_a_device_that_is_too_full_is_not_one_without_a_kernel():
    def full(args: list[Any], kwargs: Any) -> Any:
        raise torch.OutOfMemoryError("CUDA out of memory")

    with pytest.raises(torch.OutOfMemoryError):
        kernel_of(wrapped(full))
