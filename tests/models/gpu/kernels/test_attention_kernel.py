"""Our own paged attention: what the reference gives, on any pages, and each row by itself."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from models.gpu.indices import PassTensors, exact_shape, index_pass, padded_shape
from models.gpu.kernel import KernelCall, VarlenKernel
from models.gpu.probe import AttentionSizes, probe
from models.gpu.reference import reference_kernel
from models.kv.pages import PageStorage
from models.kv.rows import BlockList, SequenceRows
from models.kv.storage import KVSizes

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


class Sessions:
    """Random pages, and passes of some of the sessions on them."""

    BLOCK_SIZE, NUM_BLOCKS, HEADS, KEY_HEADS, HEAD_DIM = 16, 40, 4, 2, 32

    def __init__(self) -> None:
        self.storage = PageStorage(
            KVSizes(
                num_layers=1,
                num_blocks=self.NUM_BLOCKS,
                block_size=self.BLOCK_SIZE,
                num_heads=self.KEY_HEADS,
                head_dim=self.HEAD_DIM,
                dtype=torch.float32,
                device=CPU,
            )
        )
        self.generator = torch.Generator().manual_seed(0)
        for part in self.storage.blocks[0]:
            part.copy_(torch.randn(part.shape, generator=self.generator))
        free = torch.randperm(self.NUM_BLOCKS, generator=self.generator).tolist()
        self.tables = [BlockList(free[10 * i : 10 * i + 10], 160) for i in range(4)]
        self.query = torch.randn(4, 160, self.HEADS, self.HEAD_DIM, generator=self.generator)

    def attend(
        self, kernel: VarlenKernel, wanted: list[tuple[int, int, int]], num_rows: int = 0
    ) -> list[Tensor]:
        """Attention of rows (session, start, count), by session."""
        sequences = [SequenceRows(self.tables[i], at, [0] * n, 0) for i, at, n in wanted]
        shape = exact_shape(sequences, self.BLOCK_SIZE)
        if num_rows:
            shape = padded_shape(num_rows, shape.table_width)
        arrays = index_pass(sequences, shape, self.BLOCK_SIZE, self.storage.null_block)
        tensors = PassTensors.cut(shape, *(torch.from_numpy(each) for each in arrays))
        parts = [self.query[i, at : at + n] for i, at, n in wanted]
        num_padded = shape.num_rows - sum(n for *_, n in wanted)
        parts.append(torch.zeros(num_padded, self.HEADS, self.HEAD_DIM))
        call = KernelCall(max_rows=160, max_keys=160, scale=0.2, window=None)
        whole: Tensor = kernel(torch.cat(parts), *self.storage.blocks[0], tensors, call)
        return list(whole[: whole.shape[0] - num_padded].split([n for *_, n in wanted]))


def test_a_rows_attention_does_not_depend_on_the_rows_beside_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from tests.harness.gpu.interpreted import add_in_order

    add_in_order(monkeypatch)
    monkeypatch.setattr(attention, "BLOCK_KEYS", 32)
    monkeypatch.setattr(attention, "PART_KEYS", 64)
    sessions = Sessions()
    [whole] = sessions.attend(OWN, [(0, 0, 160)])
    torch.testing.assert_close(
        whole, sessions.attend(reference_kernel(), [(0, 0, 160)])[0], rtol=NEAR, atol=NEAR
    )
    for start, count in ((150, 1), (63, 2), (64, 6), (100, 37)):
        expected = whole[start : start + count]
        assert torch.equal(sessions.attend(OWN, [(0, start, count)])[0], expected)
        beside = [(1, 3, 9), (0, start, count), (2, 0, 1), (3, 70, 20)]
        for num_rows in (0, 80):
            assert torch.equal(sessions.attend(OWN, beside, num_rows)[1], expected)
