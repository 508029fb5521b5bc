from __future__ import annotations

import pytest
import torch
from torch import nn
from transformers import AutoModelForCausalLM

from models.config import GROUPED
from models.cpu.fused_decoder import FusedDecoder
from models.engine.runner import ModelRunner
from models.layers.groups import TABLE_BITS, group_weight
from models.layers.quantization import quantize_weight
from tests.fakes.engines import text_logits, tiny_config

DTYPES = [torch.float32, torch.bfloat16]
each_quantization = pytest.mark.parametrize("quantization", ["q8", "q4"])
TEXT = list(range(5, 69))


@pytest.fixture(autouse=True)
def _inference():
    with torch.inference_mode():
        yield


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


def _logits(runner: ModelRunner) -> torch.Tensor:
    assert runner.batch_invariant
    return text_logits(runner, TEXT)


@each_quantization
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_checkpoint_is_rounded_as_the_config_says(tiny_target, dtype, quantization):
    plain = ModelRunner(tiny_config(tiny_target, dtype=dtype))
    rounded = ModelRunner(tiny_config(tiny_target, dtype=dtype, quantization=quantization))
    assert isinstance(rounded.layers, FusedDecoder)
    assert rounded.weight_bytes < plain.weight_bytes
    expected, logits = _logits(plain), _logits(rounded)
    most = {"q8": 0.1, "q4": 0.6}[quantization]
    assert 0 < (logits - expected).norm() / expected.norm() < most


@pytest.mark.parametrize(
    ("overrides", "is_fused"),
    [
        ({}, True),
        ({"tie_word_embeddings": False, "attention_bias": True, "mlp_bias": True}, True),
        ({"hidden_act": "gelu"}, False),
    ],
    ids=["fused", "fused-biases", "generic"],
)
@each_quantization
def test_logits_are_those_of_transformers_with_the_rounded_weights(
    make_tiny_llama, overrides, is_fused, quantization
):
    """Inputs are rounded to 8 bits too, so they are not the same to the last digits."""
    path = make_tiny_llama(seed=4, **overrides)
    runner = ModelRunner(tiny_config(path, quantization=quantization))
    assert isinstance(runner.layers, FusedDecoder) == is_fused
    model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32)
    table = model.get_input_embeddings()
    is_tied = table.weight is model.lm_head.weight
    for module in model.modules():
        if isinstance(module, nn.Linear):
            is_table = is_fused and is_tied and module is model.lm_head
            bits = TABLE_BITS if is_table else GROUPED[quantization]
            module.weight = nn.Parameter(group_weight(module.weight, bits).dequantized())
    if is_fused and is_tied:
        table.weight = model.lm_head.weight
    expected = model(torch.tensor([TEXT])).logits[0]
    assert (_logits(runner) - expected).norm() / expected.norm() < 0.1


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ({"quantization": "int4"}, "quantization\n.*'q8' or 'q4' .*input_value='int4'"),
        ({"quantization": ""}, "quantization\n.*'q8' or 'q4' .*input_value=''"),
        ({"quantization": "q8", "tensor_parallel_size": 2}, "tensor_parallel_size 1, got 2"),
        ({"quantization": "q8", "attention": "reference"}, "needs attention auto, got 'reference'"),
        ({"quantization": "q4", "dtype": "float16"}, "q4 needs dtype bfloat16 or .*, got 'float1"),
        ({"quantization": "int8"}, "int8 runs on cuda only, .*; on a CPU q8 keeps weights at 8"),
    ],
)
def test_what_cannot_be_rounded_is_refused(overrides, message):
    with pytest.raises(ValueError, match=message):
        tiny_config("unused", **overrides)
