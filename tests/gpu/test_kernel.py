"""Paged kernels, torch's and our own, against the reference on a GPU."""

from __future__ import annotations

import math

import pytest
import torch

from models.config import GPU_BLOCKS
from models.gpu.probe import AttentionSizes, NoKernel, find_kernel, probe, torch_features


def sizes(block_size: int, head_dim: int, key_heads: int, dtype: torch.dtype) -> AttentionSizes:
    return AttentionSizes(
        num_heads=8,
        num_key_heads=key_heads,
        head_dim=head_dim,
        block_size=block_size,
        dtype=dtype,
    )


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("key_heads", [1, 2, 8])
@pytest.mark.parametrize("head_dim", [64, 128])
@pytest.mark.parametrize("block_size", [16, 64, 256])
def test_what_is_taken_computes_what_the_reference_does(
    cuda: torch.device, block_size: int, head_dim: int, key_heads: int, dtype: torch.dtype
) -> None:
    wanted = sizes(block_size, head_dim, key_heads, dtype)
    try:
        kernel, _ = find_kernel(torch_features(cuda), [wanted], cuda)
    except NoKernel as error:
        pytest.skip(f"no kernel for {wanted}: {error}")
    unwritten = 0.0 if kernel.reads_unwritten else math.nan
    assert probe(kernel, wanted, cuda, unwritten=unwritten) == ""


def test_this_device_has_a_kernel_for_a_page_that_auto_tries(cuda: torch.device) -> None:
    """The kernel serves from Ampere on with nothing else installed, as the notes say."""
    if torch.cuda.get_device_capability(cuda) < (8, 0):
        pytest.skip("older than Ampere: no kernel here is for it")
    tried = [sizes(block_size, 64, 2, torch.bfloat16) for block_size in GPU_BLOCKS]
    kernel, found = find_kernel(torch_features(cuda), tried, cuda)
    assert not kernel.reads_unwritten, kernel
    assert found.block_size in GPU_BLOCKS
