"""Products of weights in groups: exact integers, the same bits on every CPU."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from models.cpu.embedding import PackedEmbedding
from models.cpu.product import KernelLinear
from models.layers.groups import Bits, group_weight, joined_groups

BITS: tuple[Bits, ...] = (8, 4)


def outputs() -> str:
    """A digest of outputs of many shapes, with codes and rows at their ends."""
    torch.manual_seed(0)
    digest = hashlib.sha256()
    for dtype in (torch.float32, torch.bfloat16):
        for num_outputs, num_inputs in ((64, 64), (7, 33), (130, 800)):
            weight = torch.randn(num_outputs, num_inputs).to(dtype)
            rows = torch.randn(7, num_inputs).to(dtype)
            weight[0], weight[1], rows[0], rows[1] = 1.0, -1.0, 1.0, -1.0
            for bits in BITS:
                product = KernelLinear(weight, None, bits=bits)
                read = PackedEmbedding(product)(torch.arange(num_outputs))
                for out in (product(rows), read):
                    digest.update(out.view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


@pytest.mark.slow
@pytest.mark.timeout(400)  # it compiles all kernels anew
@pytest.mark.parametrize(
    ("name", "features", "path"),
    [
        ("alderlake", "+avx,+avx2,+fma,+f16c,+avxvnni", (False, True, False)),
        ("haswell", "+avx,+avx2,+fma,+f16c", (False, False, True)),
        ("haswell", "+avx,+fma", (False, False, False)),
    ],
    ids=["avx-vnni", "avx2", "plain"],
)
def test_every_cpu_has_the_same_bits(
    tmp_path: Path, name: str, features: str, path: tuple[bool, ...]
) -> None:
    code = (
        "from models.cpu.kernels import packed\nfrom tests.models.cpu.test_packed import outputs\n"
        "print((packed._HAS_DOT, packed._HAS_SHORT_DOT, packed._HAS_PAIRS), outputs())"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={
            **os.environ,
            "NUMBA_CPU_NAME": name,
            "NUMBA_CPU_FEATURES": features,
            "XDG_CACHE_HOME": str(tmp_path),
        },
        capture_output=True,
        text=True,
        timeout=360,
        check=False,
    )
    if done.returncode == -4:  # SIGILL
        pytest.skip(f"this CPU has not all of {features}")
    assert done.stdout.strip() == f"{path} {outputs()}", done.stderr[-2000:]


@pytest.mark.parametrize("bits", BITS)
def test_rows_of_whole_numbers_have_exact_products(bits: Bits) -> None:
    """Nothing is rounded where codes are the numbers themselves, at their ends too."""
    most = {8: 127, 4: 15}[bits]
    generator = torch.Generator().manual_seed(0)
    weight = torch.randint(0, most + 1, (70, 96), generator=generator).float()
    if bits == 8:
        weight *= torch.randint(0, 2, (70, 96), generator=generator) * 2 - 1
    weight[:, ::32], weight[:, 1::32] = most, 0
    rows = torch.randint(-127, 128, (13, 96), generator=generator).float()
    rows[:, 5::32] = 127
    rows[0], weight[0] = -127, most
    assert torch.equal(KernelLinear(weight, None, bits=bits)(rows), rows @ weight.T)


def _far_apart(num_rows: int) -> Tensor:
    generator = torch.Generator().manual_seed(1)
    sizes = torch.exp2(torch.randint(-60, 60, (num_rows, 1), generator=generator).float())
    return sizes * torch.randn(num_rows, 70, generator=generator)


@pytest.mark.parametrize("bits", BITS)
def test_a_rows_bits_are_its_own_beside_rows_of_any_size(bits: Bits) -> None:
    layer = KernelLinear(_far_apart(70), None, bits=bits)
    rows = _far_apart(13)
    rows[4], rows[6], rows[8] = 0, torch.nan, torch.inf
    alone = torch.cat([layer(row) for row in rows.split(1)])
    assert alone[4].eq(0).all()
    assert alone[6].isnan().all()
    assert not alone[8].isfinite().any()
    for count in range(1, 14):
        found = torch.cat([layer(some) for some in rows.split(count)])
        torch.testing.assert_close(found, alone, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("bits", BITS)
@pytest.mark.parametrize("num_inputs", [64, 70])
def test_rows_are_read_back_as_they_were_packed(
    bits: Bits, dtype: torch.dtype, num_inputs: int
) -> None:
    weight = group_weight(_far_apart(130)[:, :num_inputs].to(dtype).contiguous(), bits)
    for kept in (weight, replace(weight, factors=None)):
        embedding = PackedEmbedding(KernelLinear(kept, None))
        ids = torch.tensor([[3, 129, 0], [64, 63, 3]])
        assert torch.equal(embedding(ids), kept.dequantized().to(dtype)[ids])


def test_weights_of_unlike_bits_share_a_product() -> None:
    generator = torch.Generator().manual_seed(0)
    weights = [torch.randn(32, 64, generator=generator) for _ in range(2)]
    parts = [group_weight(one, bits) for one, bits in zip(weights, BITS, strict=True)]
    joined = joined_groups(parts)
    assert joined.bits == 8
    expected = torch.cat([part.dequantized() for part in parts])
    assert (joined.dequantized() - expected).abs().max() < expected.abs().max() / 250
    alike = joined_groups([parts[1], replace(parts[1], factors=None)])
    again = [parts[1].dequantized(), replace(parts[1], factors=None).dequantized()]
    assert torch.equal(alike.dequantized(), torch.cat(again))
