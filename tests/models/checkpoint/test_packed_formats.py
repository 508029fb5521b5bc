"""Folders of AWQ and GPTQ: their numbers, on CPUs in groups of ours, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, OlmoConfig

from deployments.config.fit import least_rank_bytes
from deployments.config.sections.models import ModelConfig
from models.checkpoint.loader import load_checkpoint
from models.checkpoint.memory_estimate import memory_estimate
from models.checkpoint.stored_shapes import check_stored_shapes
from models.engine.runner import ModelRunner
from models.layers.grouped import GroupedLinear
from tests.cases.models.llama_family import SIZES, write
from tests.cases.packed_formats import publish
from tests.fakes.engines import text_logits, tiny_config
from tests.models.checkpoint.test_packed_folder import TEXT, config_named

EACH = [("awq", 4, False), ("gptq", 4, False), ("gptq", 4, True), ("gptq", 8, True)]


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("original")
    write(config_named("llama"), folder)
    return folder


@pytest.mark.parametrize(("method", "bits", "is_symmetric"), EACH)
def test_numbers_and_logits_are_the_folders(
    method: str, bits: int, is_symmetric: bool, original: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "published"
    numbers = publish(original, folder, method, bits, is_symmetric=is_symmetric)
    config = tiny_config(folder)
    check_stored_shapes(config)
    loaded = {
        name: module.weight.dequantized()
        for name, module in load_checkpoint(config).model.named_modules()
        if isinstance(module, GroupedLinear)
    }
    assert loaded.keys() == numbers.keys()
    for name, weight in numbers.items():  # minima are rounded to float16
        torch.testing.assert_close(loaded[name], weight, rtol=0, atol=2e-3)
    whole: Any = AutoModelForCausalLM.from_pretrained(original)
    with torch.inference_mode():
        for name, weight in numbers.items():
            whole.get_submodule(name).weight.copy_(weight)
        expected = whole(torch.tensor([TEXT])).logits[0]
    runner = ModelRunner(config)
    assert runner.batch_invariant
    found = text_logits(runner, TEXT)
    assert (found - expected).norm() / expected.norm() < 0.1
    estimate = memory_estimate(config)
    assert estimate.weight_bytes == runner.weight_bytes
    assert estimate.num_parameters == memory_estimate(tiny_config(original)).num_parameters


@pytest.mark.parametrize(
    ("terms", "complaint"),
    [
        ({"bits": 3}, r"quantization_config\.bits of gptq must be 4 or 8, got 3"),
        ({"group_size": 48}, r"group_size of gptq must be a multiple of 32 or -1, got 48"),
        ({"quant_method": "awq", "bits": 8}, r"bits of awq must be 4, got 8"),
        ({"quant_method": "awq", "version": "gemv"}, r"version of awq must be gemm .*'gemv'"),
        ({"quant_method": "bitsandbytes"}, "quantised already .*'bitsandbytes'.* awq or gptq"),
    ],
)
def test_groups_that_are_not_read_are_refused(
    terms: dict[str, Any], complaint: str, original: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "published"
    publish(original, folder, "gptq")
    config = json.loads((folder / "config.json").read_text())
    config["quantization_config"] |= terms
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(ValueError, match=complaint):
        memory_estimate(tiny_config(folder))


def test_a_gpu_takes_them_by_vllm_only(original: Path, tmp_path: Path) -> None:
    folder = tmp_path / "published"
    publish(original, folder, "awq")
    gpu = {"device": "cuda", "dtype": "bfloat16"}
    with pytest.raises(ValueError, match="served for device cpu, got cuda; engine vllm"):
        memory_estimate(tiny_config(folder, **gpu))
    by_vllm = memory_estimate(tiny_config(folder, **gpu, engine="vllm"))
    assert by_vllm.weight_bytes > 0
    assert by_vllm.num_parameters == memory_estimate(tiny_config(folder)).num_parameters
    assert 5 < by_vllm.bits_a_weight < 11  # embedding and output layer are whole


def test_the_check_reads_headers_of_other_groups(original: Path, tmp_path: Path) -> None:
    """vLLM may serve what is no group of ours: sizes are said, and nothing breaks."""
    folder = tmp_path / "published"
    publish(original, folder, "gptq")
    tensors = load_file(folder / "model.safetensors")
    for name in [name for name in tensors if name.endswith(".qzeros")]:
        tensors[name] = tensors[name][:, : 3 * tensors[name].shape[1] // 4].contiguous()  # 3 bits
    odd = {"extra.codes": torch.zeros(4, 4, 1), "extra.scales": torch.zeros(4, 1, 1, 1)}
    save_file(tensors | odd, folder / "model.safetensors")
    model = ModelConfig(model_path=str(folder), engine="vllm")
    assert least_rank_bytes(model, "target").weights > 0
    own = ModelConfig(model_path=str(folder))
    with pytest.raises(ValueError, match=r"extra\.codes is stored with scales of shape \[4, 1, 1"):
        least_rank_bytes(own, "target")


def test_families_without_such_layers_are_refused_before_loading(tmp_path: Path) -> None:
    folder = tmp_path / "published"
    write(OlmoConfig(**{**SIZES, "intermediate_size": 192}), tmp_path / "original")
    publish(tmp_path / "original", folder, "gptq")
    for check in (memory_estimate, load_checkpoint):
        with pytest.raises(ValueError, match="weights in groups are served for Llama, Mistral"):
            check(tiny_config(folder))


def test_other_orders_and_zeros_are_refused(original: Path, tmp_path: Path) -> None:
    folder = tmp_path / "published"
    publish(original, folder, "gptq", 8)
    file = folder / "model.safetensors"
    tensors, layer = load_file(file), "model.layers.1.mlp.down_proj"
    order = tensors[f"{layer}.g_idx"].flip(0)
    save_file(tensors | {f"{layer}.g_idx": order.clone()}, file)
    with pytest.raises(ValueError, match=rf"{layer}: .* order of their groups \(desc_act\)"):
        load_checkpoint(tiny_config(folder))
    zeros = tensors[f"{layer}.qzeros"] + 1
    save_file(tensors | {f"{layer}.qzeros": zeros}, file)
    with pytest.raises(ValueError, match=rf"{layer}: 8-bit codes are read with zero at 128 only"):
        load_checkpoint(tiny_config(folder))
    save_file(tensors | {f"{layer}.qzeros": zeros[:, :1].clone()}, file)
    with pytest.raises(ValueError, match=rf"{layer}\.qzeros has 1 columns, \d+ outputs need more"):
        load_checkpoint(tiny_config(folder))
    save_file({k: v for k, v in tensors.items() if k != f"{layer}.scales"}, file)
    with pytest.raises(ValueError, match=rf"{layer}\.qweight is stored without {layer}\.scales"):
        load_checkpoint(tiny_config(folder))
