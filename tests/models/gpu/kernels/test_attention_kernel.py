"""Our own paged attention: what the reference gives, on any pages, and each row by itself."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from models.gpu.kernel import VarlenKernel, VarlenPass
from models.gpu.probe import AttentionSizes, probe
from tests.cases.attention import PagedBench, Pass, Rows, Text
from tests.harness.gpu.interpreted import add_in_order

pytest.importorskip("triton", reason="Triton is not installed")

from models.gpu.kernels import attention
from models.gpu.kernels.attention import paged_varlen_attn

CPU = torch.device("cpu")
OWN = VarlenKernel(paged_varlen_attn, True, wants_cumulative_keys=False, name="Triton")
NEAR = 2e-6


def sizes(
    heads: tuple[int, int] = (4, 2), head_dim: int = 16, block_size: int = 16
) -> AttentionSizes:
    return AttentionSizes(
        num_heads=heads[0],
        num_key_heads=heads[1],
        head_dim=head_dim,
        block_size=block_size,
        dtype=torch.float32,
    )


@pytest.mark.parametrize(
    ("heads", "head_dim", "block_size", "part_keys"),
    [
        ((4, 4), 40, 16, 512),
        ((6, 1), 16, 16, 512),
        ((14, 2), 16, 64, 512),
        ((4, 2), 16, 64, 64),
    ],
)
def test_it_passes_the_probe(
    heads: tuple[int, int],
    head_dim: int,
    block_size: int,
    part_keys: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Mixed, single and padded rows, with windows, over slots of NaN that nobody has written."""
    monkeypatch.setattr(attention, "PART_KEYS", part_keys)
    assert probe(OWN, sizes(heads, head_dim, block_size), CPU, unwritten=math.nan) == ""


def test_it_gives_the_shapes_of_a_device_without_values() -> None:
    def meta(*shape: int, dtype: torch.dtype = torch.int32) -> Tensor:
        return torch.empty(shape, dtype=dtype, device="meta")

    pages = meta(3, 16, 2, 16, dtype=torch.bfloat16)
    out, log_sums = paged_varlen_attn(
        *(meta(5, 4, 16, dtype=torch.bfloat16), pages, pages, meta(3), None, 4, 32),
        return_aux=True,
        scale=1.0,
        window_size=(-1, 0),
        seqused_k=meta(2),
        block_table=meta(2, 2),
    )
    assert (out.shape, out.dtype) == ((5, 4, 16), torch.bfloat16)
    assert (log_sums.shape, log_sums.dtype) == ((4, 5), torch.float32)


class OwnBench(PagedBench):
    """Attends by our own kernel."""

    def plan(self, sequences: Pass) -> VarlenPass:
        return replace(super().plan(sequences), kernel=OWN)


def test_a_rows_attention_does_not_depend_on_the_rows_beside_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    add_in_order(monkeypatch)
    monkeypatch.setattr(attention, "BLOCK_KEYS", 32)
    monkeypatch.setattr(attention, "PART_KEYS", 64)
    bench, reference = OwnBench(torch.float32, 40), PagedBench(torch.float32, 40)
    texts = [Text(160, seed, torch.float32) for seed in range(4)]
    tables = [bench.pool.new_table() for _ in texts]
    others: list[Rows] = [
        (texts[1], tables[1], 3, 12),
        (texts[2], tables[2], 0, 1),
        (texts[3], tables[3], 70, 90),
    ]
    bench.run([(text, table, 0, stop) for text, table, _, stop in others])
    (whole,) = bench.run([(texts[0], tables[0], 0, 160)])
    (expected,) = reference.run(reference.whole(texts[:1]))
    torch.testing.assert_close(whole, expected, rtol=NEAR, atol=NEAR)
    for start, stop in ((150, 151), (100, 137), (64, 70), (63, 65)):
        rows = (texts[0], tables[0], start, stop)
        bench.is_padded = False
        assert torch.equal(bench.run([rows])[0], whole[start:stop])
        for is_padded in (False, True):
            bench.is_padded = is_padded
            beside = bench.run([others[0], rows, *others[1:]])
            assert torch.equal(beside[1], whole[start:stop])
