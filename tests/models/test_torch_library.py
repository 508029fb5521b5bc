"""Kernels are taken only where one was launched: without a compiler torch computes."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from models import torch_library
from models.gpu.operations import TORCH, layer_operations
from models.torch_library import has_kernels

triton = pytest.importorskip("triton", reason="Triton is not installed")

GPU = torch.device("cuda")


@pytest.fixture(autouse=True)
def asked_anew() -> Iterator[None]:
    """What was found of a device is kept for the process."""
    torch_library._can_launch.cache_clear()
    yield
    torch_library._can_launch.cache_clear()


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU, which launches")
def test_where_nothing_can_be_launched_torch_computes(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Triton is installed here, and finds no driver."""
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    for _ in range(2):
        assert not has_kernels(GPU)
    assert layer_operations(GPU) is TORCH
    (record,) = caplog.records
    assert "Triton launches no kernel on cuda" in record.getMessage()
    assert "python3-dev" in record.getMessage()


class Unlaunched:
    """A kernel whose first launch fails."""

    def __init__(self, error: Exception) -> None:
        self._error = error

    def __getitem__(self, grid: object) -> Any:
        raise self._error


@pytest.mark.parametrize(
    "error",
    [
        RuntimeError("Failed to find C compiler"),
        subprocess.CalledProcessError(1, ["gcc", "-lcuda"]),
        ImportError("cuda_utils.so: undefined symbol"),
        PermissionError("~/.triton/cache"),
        triton.errors.TritonError("ptxas fatal"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_however_a_launch_fails_the_reason_is_logged(
    error: Exception, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(triton, "jit", lambda kernel: Unlaunched(error))
    assert not has_kernels(GPU)
    assert str(error) in caplog.text


def test_a_device_is_asked_once(monkeypatch: pytest.MonkeyPatch) -> None:
    launched: list[object] = []
    monkeypatch.setattr(triton, "jit", lambda kernel: {(1,): lambda: launched.append(kernel)})
    assert has_kernels(GPU)
    assert has_kernels(GPU)
    assert len(launched) == 1


def test_a_device_without_values_has_them_and_a_cpu_none() -> None:
    assert has_kernels(torch.device("meta"))
    assert not has_kernels(torch.device("cpu"))
