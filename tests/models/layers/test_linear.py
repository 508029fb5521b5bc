from __future__ import annotations

import pytest
import torch
from torch import nn

from models.cpu.product import KernelLinear
from models.cpu.quantizer import Quantizer
from models.layers.linear import PackedLinear, RowwiseActivation, can_pack, make_rowwise

DTYPES = [torch.float32, torch.bfloat16]
ROW_COUNTS = (1, 2, 3, 6, 9, 17, 64, 100)


@pytest.fixture(params=DTYPES, ids=["float32", "bfloat16"])
def dtype(request):
    if not can_pack(request.param):
        pytest.skip(f"this CPU or torch has no packed kernel for {request.param}")
    return request.param


@pytest.fixture(autouse=True)
def _inference():
    with torch.inference_mode():
        yield


def _linear(num_inputs: int, num_outputs: int, dtype: torch.dtype, *, bias: bool) -> nn.Linear:
    torch.manual_seed(num_inputs + num_outputs)
    return nn.Linear(num_inputs, num_outputs, bias=bias, dtype=dtype)


@pytest.mark.parametrize(
    ("num_inputs", "num_outputs"), [(64, 32), (176, 64), (1024, 96), (1025, 64), (2816, 130)]
)
@pytest.mark.parametrize("bias", [True, False])
def test_rows_do_not_depend_on_each_other(dtype, num_inputs, num_outputs, bias):
    linear = _linear(num_inputs, num_outputs, dtype, bias=bias)
    packed = PackedLinear(linear.weight, linear.bias)
    rows = torch.randn(101, num_inputs).to(dtype)
    whole = packed(rows)
    for count in ROW_COUNTS:
        for start in (0, 1):
            part = packed(rows[start : start + count].clone())
            assert torch.equal(part, whole[start : start + count]), (count, start)


@pytest.mark.parametrize(("num_inputs", "num_outputs"), [(64, 32), (2816, 130)])
@pytest.mark.parametrize("bias", [True, False])
def test_result_is_that_of_the_linear_layer(dtype, num_inputs, num_outputs, bias):
    linear = _linear(num_inputs, num_outputs, dtype, bias=bias)
    rows = torch.randn(2, 3, num_inputs).to(dtype)
    exact = rows.double() @ linear.weight.double().T
    if bias:
        exact += linear.bias.double()
    out = PackedLinear(linear.weight, linear.bias)(rows)
    assert out.shape == exact.shape
    assert out.dtype == dtype
    tolerance = 1e-5 if dtype == torch.float32 else 2e-2
    torch.testing.assert_close(out.double(), exact, rtol=tolerance, atol=tolerance)


def test_no_rows_give_no_rows(dtype):
    linear = _linear(64, 32, dtype, bias=False)
    assert PackedLinear(linear.weight, None)(torch.empty(1, 0, 64, dtype=dtype)).shape == (1, 0, 32)


@pytest.mark.parametrize("width", [100, 176, 704])
@pytest.mark.parametrize("function", [nn.SiLU(), nn.GELU(), nn.GELU(approximate="tanh")], ids=str)
def test_activation_of_a_row_does_not_depend_on_the_others(dtype, width, function):
    torch.manual_seed(0)
    rows = (torch.randn(1, 301, width) * 3).to(dtype)
    wrapped = RowwiseActivation(function)
    whole = wrapped(rows)
    torch.testing.assert_close(whole, function(rows))
    for count in (1, 2, 3, 7, 47, 94, 101, 300):
        assert torch.equal(wrapped(rows[:, :count].clone()), whole[:, :count]), count


class TiedModel(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(32, 16)
        self.block = nn.Sequential(nn.Linear(16, 16), nn.SiLU())
        self.head = nn.Linear(16, 32, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, ids):
        return self.head(self.block(self.embedding(ids)))


@pytest.mark.parametrize("is_rounded", [False, True])
def test_make_rowwise_replaces_layers_in_place_and_keeps_a_tied_embedding(is_rounded):
    torch.manual_seed(0)
    model, ids = TiedModel(), torch.arange(32)
    expected = model(ids)
    quantizer = Quantizer(KernelLinear, 8)
    make_rowwise(model, *([quantizer] if is_rounded else []))
    kind = KernelLinear if is_rounded else PackedLinear
    kinds = [type(model.block[0]), type(model.block[1]), type(model.head)]
    assert kinds == [kind, RowwiseActivation, kind]
    assert [name for name, _ in model.named_parameters()] == ["embedding.weight"]
    if not is_rounded:
        torch.testing.assert_close(model(ids), expected)
        return
    # A group of 16 inputs takes as much as one of 32, with its scale; outputs have factors.
    assert quantizer.num_bytes == 16 * (32 + 2 + 4) + 4 * 16 + 32 * (32 + 2 + 4)
    torch.testing.assert_close(model(ids), expected, rtol=0, atol=0.15)
    assert not torch.equal(model(ids), expected)
