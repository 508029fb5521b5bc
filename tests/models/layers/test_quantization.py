from __future__ import annotations

import json
import shutil
from typing import Any

import pytest
import torch
from torch import nn
from transformers import AutoModelForCausalLM, LlamaConfig

from models.checkpoint.loader import load_checkpoint, refuse_unsupported
from models.config import EngineConfig
from models.cpu.backend import FusedForward
from models.engine.runner import ModelRunner, SequenceRows
from models.layers.linear import RowwiseActivation, make_rowwise
from models.layers.quantization import (
    Int8Linear,
    Quantizer,
    can_quantize,
    quantize_weight,
    refuse_unquantizable,
)

DTYPES = [torch.float32, torch.bfloat16]
TEXT = list(range(5, 69))
ROW_COUNTS = (1, 2, 3, 6, 9, 17, 64, 100)
# Relative rounding of one product to the type, and of a float32 sum of some thousand terms.
PRODUCT_ROUNDING = {torch.float32: 1e-5, torch.bfloat16: 2.0**-8}


@pytest.fixture(params=DTYPES, ids=["float32", "bfloat16"])
def dtype(request):
    if not can_quantize(request.param):
        pytest.skip(f"this torch has no 8-bit product for {request.param}")
    return request.param


@pytest.fixture(autouse=True)
def _inference():
    with torch.inference_mode():
        yield


def _linear(num_inputs: int, num_outputs: int, dtype: torch.dtype, *, bias: bool) -> nn.Linear:
    torch.manual_seed(num_inputs + num_outputs)
    return nn.Linear(num_inputs, num_outputs, bias=bias, dtype=dtype)


def _dequantized(weight: torch.Tensor) -> torch.Tensor:
    integers, scales = quantize_weight(weight)
    return integers.double() * scales.double().unsqueeze(1)


@pytest.mark.parametrize("dtype", [*DTYPES, torch.float16], ids=str)
def test_no_weight_moves_by_more_than_half_its_scale(dtype):
    torch.manual_seed(0)
    weight = torch.randn(64, 300).mul(torch.logspace(-6, 1, 64).unsqueeze(1)).to(dtype)
    weight[3] = 0
    weight[5, 7] = 100  # an outlier of its own row harms no other row
    integers, scales = quantize_weight(weight)
    assert integers.dtype == torch.int8
    assert integers.abs().max() <= 127
    error = (weight.double() - _dequantized(weight)).abs()
    assert (error <= scales.double().unsqueeze(1) * 0.5001).all()
    assert (error[6] < 0.01).all()
    assert (integers[3] == 0).all()


@pytest.mark.parametrize(
    ("num_inputs", "num_outputs"), [(64, 32), (176, 64), (33, 7), (1024, 96), (2816, 130)]
)
@pytest.mark.parametrize("bias", [True, False])
def test_error_is_within_the_bound_of_the_rounded_weights(dtype, num_inputs, num_outputs, bias):
    linear = _linear(num_inputs, num_outputs, dtype, bias=bias)
    rows = torch.randn(2, 3, num_inputs).to(dtype)
    out = Int8Linear(linear.weight, linear.bias)(rows)
    exact = rows.double() @ linear.weight.double().T
    if bias:
        exact += linear.bias.double()
    _, scales = quantize_weight(linear.weight)
    bound = scales.double() / 2 * rows.double().abs().sum(-1, keepdim=True)
    rounding = PRODUCT_ROUNDING[dtype] * (rows.double().abs() @ linear.weight.double().abs().T + 1)
    assert out.shape == exact.shape
    assert out.dtype == dtype
    error = (out.double() - exact).abs()
    assert (error <= bound + rounding).all()
    assert error.max() > 0  # it is rounded


def test_result_is_that_of_the_rounded_weights(dtype):
    linear = _linear(500, 60, dtype, bias=False)
    rows = torch.randn(9, 500).to(dtype)
    exact = rows.double() @ _dequantized(linear.weight).T
    tolerance = PRODUCT_ROUNDING[dtype]
    out = Int8Linear(linear.weight, None)(rows)
    torch.testing.assert_close(out.double(), exact, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("num_threads", [1, 2])
@pytest.mark.parametrize(
    ("num_inputs", "num_outputs"), [(64, 32), (33, 7), (1025, 64), (2816, 1030)]
)
def test_rows_do_not_depend_on_each_other(dtype, num_inputs, num_outputs, num_threads):
    linear = _linear(num_inputs, num_outputs, dtype, bias=True)
    layer = Int8Linear(linear.weight, linear.bias)
    rows = torch.randn(101, num_inputs).to(dtype)
    threads_before = torch.get_num_threads()
    torch.set_num_threads(num_threads)
    try:
        whole = layer(rows)
        for count in ROW_COUNTS:
            for start in (0, 1):
                part = slice(start, start + count)
                assert torch.equal(layer(rows[part].clone()), whole[part]), (count, start)
    finally:
        torch.set_num_threads(threads_before)


def test_no_rows_give_no_rows(dtype):
    layer = Int8Linear(_linear(64, 32, dtype, bias=False).weight, None)
    assert layer(torch.empty(1, 0, 64, dtype=dtype)).shape == (1, 0, 32)


def test_a_generic_model_is_rounded_in_place_and_keeps_its_embedding():
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.embedding = nn.Embedding(32, 16)
            self.block = nn.Sequential(nn.Linear(16, 16), nn.SiLU())
            self.head = nn.Linear(16, 32, bias=False)
            self.head.weight = self.embedding.weight

        def forward(self, ids):
            return self.head(self.block(self.embedding(ids)))

    torch.manual_seed(0)
    model = Model()
    expected = model(torch.arange(32))
    quantizer = Quantizer(Int8Linear)
    make_rowwise(model, quantizer)
    kinds = [type(model.block[0]), type(model.block[1]), type(model.head)]
    assert kinds == [Int8Linear, RowwiseActivation, Int8Linear]
    assert [name for name, _ in model.named_parameters()] == ["embedding.weight"]
    assert quantizer.num_bytes == (16 * 16 + 4 * 16 + 4 * 16) + (32 * 16 + 4 * 32)
    out = model(torch.arange(32))
    torch.testing.assert_close(out, expected, rtol=0, atol=0.05)
    assert not torch.equal(out, expected)


def _config(path: str, **overrides: Any) -> EngineConfig:
    return EngineConfig(
        model_path=path,
        **{"max_model_len": 256, "num_threads": 1, "dtype": "float32", **overrides},
    )


def _logits(config: EngineConfig) -> torch.Tensor:
    runner = ModelRunner(config)
    assert runner.batch_invariant
    table = runner.pool.new_table()
    table.resize(len(TEXT))
    return runner.forward([SequenceRows(table, 0, TEXT, len(TEXT))])


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_checkpoint_is_rounded_as_the_config_says(tiny_target, dtype):
    plain = ModelRunner(_config(tiny_target, dtype=dtype))
    rounded = ModelRunner(_config(tiny_target, dtype=dtype, quantization="int8"))
    assert isinstance(rounded.layers, FusedForward)
    assert rounded.weight_bytes < plain.weight_bytes
    expected = _logits(_config(tiny_target, dtype=dtype))
    logits = _logits(_config(tiny_target, dtype=dtype, quantization="int8"))
    assert 0 < (logits - expected).norm() / expected.norm() < 0.05


@pytest.mark.parametrize(
    ("overrides", "is_fused"),
    [
        ({}, True),
        ({"tie_word_embeddings": False, "attention_bias": True, "mlp_bias": True}, True),
        ({"hidden_act": "gelu"}, False),
    ],
    ids=["fused", "fused-biases", "generic"],
)
def test_logits_are_those_of_transformers_with_the_rounded_weights(
    make_tiny_llama, overrides, is_fused
):
    path = make_tiny_llama(seed=4, **overrides)
    config = _config(path, quantization="int8")
    assert isinstance(ModelRunner(config).layers, FusedForward) == is_fused
    model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32)
    for module in model.modules():
        if isinstance(module, nn.Linear):  # of a tied pair the head alone
            module.weight = nn.Parameter(_dequantized(module.weight).float())
    expected = model(torch.tensor([TEXT])).logits[0]
    torch.testing.assert_close(_logits(config), expected, rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ({"quantization": "int4"}, "quantization\n.*should be 'int8' .*input_value='int4'"),
        ({"quantization": ""}, "quantization\n.*should be 'int8' .*input_value=''"),
        (
            {"quantization": "int8", "tensor_parallel_size": 2},
            "tensor_parallel_size 1 on device 'cpu', got 2",
        ),
    ],
)
def test_what_cannot_be_rounded_is_refused(overrides, message):
    with pytest.raises(ValueError, match=message):
        _config("unused", **overrides)


def test_a_type_without_a_product_is_refused():
    with pytest.raises(ValueError, match="no 8-bit product for dtype float64"):
        refuse_unquantizable(torch.float64)


def test_a_checkpoint_that_is_quantised_already_is_refused_by_name(tiny_target, tmp_path):
    path = shutil.copytree(tiny_target, tmp_path / "model")
    content = json.loads((path / "config.json").read_text())
    content["quantization_config"] = {"quant_method": "gptq", "bits": 4, "group_size": 128}
    (path / "config.json").write_text(json.dumps(content))
    with pytest.raises(ValueError, match=r"quantised already .* quant_method 'gptq'"):
        load_checkpoint(_config(str(path)))


def test_a_checkpoint_that_is_not_quantised_is_not_refused():
    refuse_unsupported(LlamaConfig(), _config("unused"))
