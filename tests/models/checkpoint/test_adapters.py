"""Adapters' files held to the model they are for; no adapter is loaded."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from models.checkpoint.adapters import check_adapter, check_adapters
from models.config import EngineConfig
from tests.cases.models.lora import write_adapter
from tests.cases.tiny_llama import write_tiny_llama


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_llama(tmp_path_factory.mktemp("model"))


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"rank": 32}, "rank r must be at most max_lora_rank, 16, got 32"),
        ({"rank_pattern": {"q_proj": 64}}, "must be at most max_lora_rank, 16, got 64"),
        ({"r": "4"}, "must be integers from 1 on, got '4'"),
        ({"peft_type": "IA3"}, "peft_type must be 'LORA', got 'IA3'"),
    ],
)
def test_what_a_config_says_is_held_to_the_limits(
    model: Path, tmp_path: Path, changes: dict[str, Any], told: str
) -> None:
    write_adapter(tmp_path, model, 1, **changes)
    with pytest.raises(ValueError, match=told):
        check_adapter(tmp_path, model, 16)


def test_an_adapter_of_another_model_is_refused_by_its_layers(model: Path, tmp_path: Path) -> None:
    wide = write_tiny_llama(tmp_path / "wide", hidden_size=128, head_dim=16)
    adapter = write_adapter(tmp_path / "adapter", wide, 1)
    told = r"it is for another model: .* has \d+ \w+ in .*, got \d+"
    with pytest.raises(ValueError, match=told):
        check_adapter(adapter, model, 16)
    deep = write_tiny_llama(tmp_path / "deep", num_hidden_layers=3)
    with pytest.raises(ValueError, match=r"it changes model\.layers\.2\..*, which .* has not"):
        check_adapter(write_adapter(tmp_path / "more", deep, 1), model, 16)


def test_a_fault_names_the_key_of_the_adapter(model: Path, tmp_path: Path) -> None:
    good = write_adapter(tmp_path / "good", model, 1)
    modules = {"good": str(good), "gone": str(tmp_path / "gone")}
    config = EngineConfig(model_path=str(model), engine="vllm", lora_modules=modules)
    with pytest.raises(ValueError, match=r"lora_modules\.gone: no such folder"):
        check_adapters(config)


def test_adapters_are_for_engine_vllm() -> None:
    with pytest.raises(ValueError, match="lora_modules is for engine vllm, got a with engine own"):
        EngineConfig(model_path="m", lora_modules={"a": "folder"})
