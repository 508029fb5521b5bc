"""Folders with weights in groups: what is served, refused, counted, and drafts behind them."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from gguf import GGMLQuantizationType as Kind
from transformers import AutoModelForCausalLM, OlmoConfig

from loadtest.frame.references import load_reference
from models.checkpoint.loader import load_checkpoint
from models.checkpoint.memory_estimate import memory_estimate
from models.checkpoint.packed import refuse_groups
from models.checkpoint.stored_shapes import check_stored_shapes
from models.cpu.fused_decoder import FusedDecoder
from models.engine.runner import ModelRunner, SequenceRows
from models.layers.grouped import GroupedEmbedding, GroupedLinear, has_groups
from models.packed_form import FOLDER
from tests.cases.models.llama_family import CONFIGS, SIZES, write
from tests.cases.models.mtp import mtp_weights, write_mtp
from tests.cases.packed_folders import pack_folder
from tests.fakes.engines import text_logits, tiny_config

TEXT = list(range(5, 69))


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("original")
    write(config_named("llama"), folder)
    return folder


def config_named(name: str) -> Any:
    """The config with inputs that fill groups."""
    config = copy.deepcopy(CONFIGS[name])
    config.intermediate_size = 192
    return config


@pytest.mark.parametrize("mixed", [None, Kind.Q8_0], ids=["alike", "mixed"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("name", ["llama", "qwen2", "qwen3"])
def test_logits_are_those_of_the_stored_numbers(
    name: str, dtype: str, mixed: Kind | None, tmp_path: Path
) -> None:
    """Inputs are rounded to 8 bits too, so they are not the same to the last digits."""
    write(config_named(name), tmp_path / "original")
    folder = pack_folder(tmp_path / "original", tmp_path / "packed", Kind.Q4_1, mixed)
    config = tiny_config(folder, dtype=dtype)
    check_stored_shapes(config)
    runner = ModelRunner(config)
    assert isinstance(runner.layers, FusedDecoder)
    assert runner.batch_invariant
    whole: Any = AutoModelForCausalLM.from_pretrained(tmp_path / "original")
    with torch.inference_mode():
        for layer, module in load_checkpoint(tiny_config(folder)).model.named_modules():
            if isinstance(module, GroupedLinear | GroupedEmbedding):
                whole.get_submodule(layer).weight.copy_(module.weight.dequantized())
        expected = whole(torch.tensor([TEXT])).logits[0]
    found = text_logits(runner, TEXT)
    assert (found - expected).norm() / expected.norm() < 0.1


def test_the_estimate_is_what_is_taken(original: Path, tmp_path: Path) -> None:
    folder = pack_folder(original, tmp_path / "packed", Kind.Q4_1, Kind.Q8_0)
    estimate = memory_estimate(tiny_config(folder))
    runner = ModelRunner(tiny_config(folder))
    # Values and the queries beside them share a product, whose weights all come to have 8 bits.
    assert estimate.weight_bytes <= runner.weight_bytes < 1.2 * estimate.weight_bytes
    alike = pack_folder(original, tmp_path / "alike", Kind.Q4_1)
    taken = ModelRunner(tiny_config(alike)).weight_bytes
    assert memory_estimate(tiny_config(alike)).weight_bytes == taken
    assert estimate.num_parameters == memory_estimate(tiny_config(original)).num_parameters


@pytest.mark.parametrize(
    ("keys", "complaint"),
    [
        ({"quantization": "q4"}, "for quantization None, got q4"),
        ({"dtype": "float16"}, "for dtype bfloat16 or float32, got float16"),
        ({"attention": "reference"}, "for attention auto, got reference"),
        ({"engine": "vllm"}, "for engine own, got vllm"),
    ],
)
def test_a_config_that_does_not_go_with_groups_is_refused(
    original: Path, tmp_path: Path, keys: dict[str, Any], complaint: str
) -> None:
    folder = pack_folder(original, tmp_path / "packed", Kind.Q8_0)
    with pytest.raises(ValueError, match=rf"keeps weights in groups, served {complaint}"):
        memory_estimate(tiny_config(folder, **keys))


def test_other_families_are_refused(tmp_path: Path) -> None:
    write(OlmoConfig(**{**SIZES, "intermediate_size": 192}), tmp_path / "original")
    folder = pack_folder(tmp_path / "original", tmp_path / "packed", Kind.Q8_0)
    with pytest.raises(ValueError, match="weights in groups are served for Llama, Mistral"):
        load_checkpoint(tiny_config(folder))


def test_few_bits_mean_those_that_lie_beside_the_whole_ones(tmp_path: Path) -> None:
    """Nothing is rounded twice; other bits than those are rounded from the whole numbers."""
    write(config_named("llama"), tmp_path)
    pack_folder(tmp_path, tmp_path / FOLDER, Kind.Q4_1)
    loaded = {
        name: load_checkpoint(tiny_config(tmp_path, quantization=name))
        for name in ("q4", "q8", None)
    }
    assert {name: has_groups(one.model) for name, one in loaded.items()} == {
        "q4": True,
        "q8": False,
        None: False,
    }
    assert loaded["q4"].quantization == "q4"  # heads are rounded so, too
    sizes = memory_estimate(tiny_config(tmp_path, quantization="q4"))
    assert sizes.weight_bytes == memory_estimate(tiny_config(tmp_path / FOLDER)).weight_bytes


def test_transformers_is_kept_from_a_folder_that_it_would_read_as_noise(
    original: Path, tmp_path: Path
) -> None:
    folder = pack_folder(original, tmp_path / "packed", Kind.Q8_0)
    refuse_groups(str(original))
    with pytest.raises(ValueError, match="keeps weights in groups of few bits: give a folder"):
        load_reference(folder, "float32")


def test_a_head_shares_an_output_layer_of_8_bits(original: Path, tmp_path: Path) -> None:
    heads = str(write_mtp(tmp_path / "heads", mtp_weights(original)))
    whole = ModelRunner(tiny_config(original, quantization="q4"))
    with_heads = ModelRunner(tiny_config(original, quantization="q4", heads=heads))
    folder = pack_folder(original, tmp_path / "packed", Kind.Q8_0)
    packed = [ModelRunner(tiny_config(folder, heads=one)).weight_bytes for one in (None, heads)]
    table = 256 * 64 * 4  # of the head alone, in float32: this target's own has 4 bits
    assert with_heads.weight_bytes - whole.weight_bytes == packed[1] - packed[0] + table


@pytest.mark.parametrize("ids", [None, 40], ids=["all", "some"])
def test_an_mtp_head_drafts_by_the_packed_output_layer(
    original: Path, tmp_path: Path, ids: int | None
) -> None:
    folder = pack_folder(original, tmp_path / "packed", Kind.Q8_0)
    weights = mtp_weights(original)
    if ids is not None:
        weights["d2t"] = torch.arange(ids)
    heads = str(write_mtp(tmp_path / "heads", weights))
    found = []
    for path in (original, folder):
        runner = ModelRunner(tiny_config(path, heads=heads))
        table = runner.pool.new_table()
        table.resize(5)
        runner.forward([SequenceRows(table, 0, TEXT[:5], 0)])
        assert runner.hidden is not None
        logits, _ = runner.draft_pass([SequenceRows(table, 0, TEXT[:5], 2)], runner.hidden)
        found.append(logits)
    apart = torch.nan_to_num(found[0] - found[1], neginf=0.0, posinf=0.0)
    assert apart.norm() < 0.1 * torch.nan_to_num(found[0], neginf=0.0).norm()
