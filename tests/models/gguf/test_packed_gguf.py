"""GGUF files whose weights stay packed: the numbers that the file has, and where that is not so."""

from __future__ import annotations

import json
from pathlib import Path

import gguf
import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType as Kind
from transformers import AutoModelForCausalLM

from models.checkpoint.loader import load_checkpoint
from models.config import EngineConfig
from models.gguf.convert import convert
from models.gguf.folder import PACKED, converted_folder, source_of, stays_packed
from models.gguf.packed import groups_of
from models.layers.grouped import GroupedEmbedding, GroupedLinear, StoredGroups
from models.packed_form import CODES, MINIMA, SCALES
from tests.cases.gguf_files import write_pair

EXACT = (Kind.Q8_0, Kind.Q4_0, Kind.Q4_1)


def packed(file: Path) -> Path:
    folder = file.with_suffix(".packed")
    folder.mkdir()
    convert(file, folder, PACKED)
    return folder


@pytest.mark.parametrize("kind", EXACT, ids=lambda kind: kind.name)
@pytest.mark.parametrize("architecture", ["llama", "qwen2", "qwen3"])
def test_all_numbers_are_the_files_own(tmp_path: Path, architecture: str, kind: Kind) -> None:
    file, folder = write_pair(tmp_path, architecture=architecture, kind=kind)
    config = EngineConfig(model_path=str(packed(file)), dtype="float32", max_model_len=128)
    model = load_checkpoint(config).model
    expected = AutoModelForCausalLM.from_pretrained(folder).state_dict()
    found = {
        f"{name}.weight": module.weight.dequantized()
        for name, module in model.named_modules()
        if isinstance(module, GroupedLinear | GroupedEmbedding)
    } | dict(model.named_parameters())
    assert found.keys() == expected.keys()
    for name, weight in found.items():
        assert torch.equal(weight, expected[name]), name


def read_back(rows: np.ndarray, kind: Kind) -> torch.Tensor:
    parts = {
        end: torch.from_numpy(np.ascontiguousarray(one))
        for end, one in groups_of(rows, kind).items()
    }
    stored = StoredGroups(parts[CODES], parts[SCALES], parts.get(MINIMA))
    return stored.weight(torch.float32).dequantized()


def random_blocks(kind: Kind, scales: list[int]) -> np.ndarray:
    """Rows of any codes; at these places of a block is a float16."""
    _, num_bytes = gguf.GGML_QUANT_SIZES[kind]
    generator = np.random.default_rng(0)
    blocks = generator.integers(0, 256, (6, 2, num_bytes), np.uint8)
    for place in scales:
        some = generator.uniform(0.001, 0.01, (6, 2, 1)).astype("<f2")
        blocks[:, :, place : place + 2] = some.view(np.uint8).reshape(6, 2, 2)
    return blocks.reshape(6, -1)


def test_scales_of_q4_k_are_rounded_to_float16() -> None:
    rows = random_blocks(Kind.Q4_K, [0, 2])
    expected = torch.from_numpy(gguf.dequantize(rows, Kind.Q4_K))
    found = read_back(rows, Kind.Q4_K)
    most = expected.abs().unflatten(1, (-1, 32)).amax(2)  # a group's codes lie around its middle
    error = (found - expected).abs().unflatten(1, (-1, 32)).amax(2)
    assert (error <= 2.0**-9 * most).all()
    assert error.max() > 0  # else the bound shows nothing


@pytest.mark.parametrize(
    ("kind", "scales"), [(Kind.Q6_K, [208]), (Kind.Q5_K, [0, 2]), (Kind.Q3_K, [108])]
)
def test_other_blocks_are_rounded_to_8_bits(kind: Kind, scales: list[int]) -> None:
    rows = random_blocks(kind, scales)
    expected = torch.from_numpy(gguf.dequantize(rows, kind))
    found = read_back(rows, kind)
    most = expected.abs().unflatten(1, (-1, 32)).amax(2, keepdim=True)
    error = (found - expected).abs().unflatten(1, (-1, 32))
    assert (error <= (0.5 / 127 + 2.0**-11) * most + 1e-6).all()  # scales are rounded too


def test_only_files_with_few_bits_stay_packed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    file, _ = write_pair(tmp_path, kind=Kind.Q4_1)
    whole, _ = write_pair(tmp_path, kind=Kind.BF16)
    assert [stays_packed(one) for one in (file, whole)] == [True, False]
    with pytest.raises(ValueError, match="has no weights of few bits that could stay packed"):
        convert(whole, tmp_path, PACKED)
    folder = converted_folder(file, PACKED)
    assert folder != converted_folder(file, "bfloat16")
    assert source_of(str(folder)).startswith(f"packed as in {file.name}, ")
    weights = folder / "model.safetensors"
    assert weights.stat().st_mode & 0o777 == 0o644
    assert weights.stat().st_size < file.stat().st_size


def test_a_tensor_that_is_missing_or_of_another_shape_is_named(tmp_path: Path) -> None:
    file, _ = write_pair(tmp_path, kind=Kind.Q4_1)
    folder = packed(file)
    config = EngineConfig(model_path=str(folder), dtype="float32", max_model_len=128)
    found = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(found | {"num_hidden_layers": 3}))
    with pytest.raises(ValueError, match=r"lacks \d+ weights .*model\.layers\.2\."):
        load_checkpoint(config)
    (folder / "config.json").write_text(json.dumps(found | {"intermediate_size": 128}))
    with pytest.raises(ValueError, match=r"have other shapes .*mlp\.\w+_proj\.weight"):
        load_checkpoint(config)
