"""A kernel is taken only if it is there, takes the arguments, and computes the right thing."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.nn.attention import varlen

from models.gpu.kernel import VarlenFunction
from models.gpu.probe import AttentionSizes, NoKernel, VarlenFeatures, find_kernel, probe
from models.gpu.reference import reference_kernel, reference_varlen_attn

CPU = torch.device("cpu")
SIZES = AttentionSizes(
    num_heads=4, num_key_heads=2, head_dim=16, block_size=16, dtype=torch.bfloat16
)


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
    assert probe(reference_kernel(), SIZES, CPU) == ""


def test_the_built_in_kernel_is_taken_where_it_works():
    switch = Switch(reference_varlen_attn)
    kernel = find_kernel(switch.features, SIZES, CPU)
    assert (kernel.name, kernel.wants_cumulative_keys) == ("built-in", False)


def test_an_implementation_is_tried_before_and_stays_active():
    switch = Switch(reference_varlen_attn, "FA3")
    assert find_kernel(switch.features, SIZES, CPU).name == "FA3"
    assert switch.active == "FA3"


def test_an_implementation_that_is_not_installed_is_passed_over():
    switch = Switch(reference_varlen_attn, "not installed")
    assert find_kernel(switch.features, SIZES, CPU).name == "built-in"
    assert switch.active is None


def test_one_that_fails_is_switched_off_again():
    switch = Switch(None, "FA3")

    def only_built_in(*args: Any, **kwargs: Any) -> Any:
        if switch.active == "FA3":
            raise RuntimeError("FA3 flash_attention forward unsupported")
        return reference_varlen_attn(*args, **kwargs)

    only_built_in.__signature__ = signature_of(reference_varlen_attn)  # type: ignore[attr-defined]
    features = VarlenFeatures(
        only_built_in,
        switch.features.aux_request,
        ["FA3"],
        switch.features.activate,
        switch.features.restore,
    )
    assert find_kernel(features, SIZES, CPU).name == "built-in"
    assert switch.active is None


def signature_of(function: VarlenFunction) -> Any:
    import inspect

    return inspect.signature(function)


def wrapped(change: Any) -> VarlenFunction:
    def function(*args: Any, **kwargs: Any) -> Any:
        return change(list(args), kwargs)

    function.__signature__ = signature_of(reference_varlen_attn)  # type: ignore[attr-defined]
    return function


def test_a_kernel_that_wants_cumulative_keys_gets_them():
    def strict(args: list[Any], kwargs: Any) -> Any:
        if args[4] is None:
            raise RuntimeError("cu_seqlens_k is needed")
        assert torch.equal(args[4].diff(), kwargs["seqused_k"])
        return reference_varlen_attn(*args, **kwargs)

    kernel = find_kernel(Switch(wrapped(strict)).features, SIZES, CPU)
    assert kernel.wants_cumulative_keys


def ignores_window(args: list[Any], kwargs: Any) -> Any:
    return reference_varlen_attn(*args, **{**kwargs, "window_size": (-1, 0)})


def ignores_causality(args: list[Any], kwargs: Any) -> Any:
    left, _ = kwargs["window_size"]
    return reference_varlen_attn(*args, **{**kwargs, "window_size": (left, -1)})


def ignores_table(args: list[Any], kwargs: Any) -> Any:
    table = torch.arange(kwargs["block_table"].numel()) % args[1].shape[0]
    table = table.view_as(kwargs["block_table"])
    return reference_varlen_attn(*args, **{**kwargs, "block_table": table})


def forgets_rows(args: list[Any], kwargs: Any) -> Any:
    out, log_sum = reference_varlen_attn(*args, **kwargs)
    out[-1] = float("nan")
    return out, log_sum


def turns_log_sum(args: list[Any], kwargs: Any) -> Any:
    out, log_sum = reference_varlen_attn(*args, **kwargs)
    return out, log_sum.T


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        (ignores_window, "attention is off by .* with window 20"),
        (ignores_causality, "attention is off by .* with window None"),
        (ignores_table, "attention is off by"),
        (forgets_rows, "attention is off by nan"),
        (turns_log_sum, r"log-sum-exp is \(9, 4\), not \(4, 9\)"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_a_kernel_that_is_wrong_is_refused(change: Any, complaint: str):
    with pytest.raises(NoKernel, match=complaint):
        find_kernel(Switch(wrapped(change)).features, SIZES, CPU)


def test_a_torch_without_the_function_has_no_kernel():
    with pytest.raises(NoKernel, match="has no varlen_attn"):
        find_kernel(Switch(None).features, SIZES, CPU)


def test_a_signature_without_block_tables_is_named():
    def older(query: Any, key: Any, value: Any, *, scale: Any = None, window_size: Any = None):
        raise AssertionError("must not be called")

    with pytest.raises(NoKernel, match="lacks seqused_k, block_table, num_splits, enable_gqa"):
        find_kernel(Switch(older).features, SIZES, CPU)


def test_the_installed_torch_has_the_signature_but_no_cpu_kernel():
    with pytest.raises(NoKernel, match="built-in: "):
        find_kernel(Switch(varlen.varlen_attn).features, SIZES, CPU)
