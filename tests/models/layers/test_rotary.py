"""Rope variants against transformers, and that no session's rope depends on its neighbours."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, LlamaConfig, Phi3Config, PreTrainedConfig

from models.engine.runner import ModelRunner, SequenceRows
from tests.cases.models.architectures import sizes, write
from tests.fakes.engines import tiny_config

SIZES = sizes(16) | {"vocab_size": 128}
ORIGINAL_LEN = 64
TEXT = torch.randint(128, (100,), generator=torch.Generator().manual_seed(0)).tolist()


def _llama(kind: str, **fields: Any) -> PreTrainedConfig:
    return LlamaConfig(
        **SIZES, rope_parameters={"rope_type": kind, "rope_theta": 1e4, "factor": 4.0, **fields}
    )


SCALED = {
    "linear": _llama("linear"),
    "yarn": _llama("yarn", original_max_position_embeddings=ORIGINAL_LEN),
    "llama3": _llama(
        "llama3",
        low_freq_factor=1.0,
        high_freq_factor=4.0,
        original_max_position_embeddings=ORIGINAL_LEN,
    ),
}
LONGROPE = Phi3Config(
    **SIZES,
    original_max_position_embeddings=ORIGINAL_LEN,
    rope_parameters={
        "rope_type": "longrope",
        "rope_theta": 1e4,
        "short_factor": [1.0 + 0.1 * i for i in range(8)],
        "long_factor": [2.0 + 0.9 * i for i in range(8)],
        "original_max_position_embeddings": ORIGINAL_LEN,
    },
)


def _runner(folder: Path, max_model_len: int) -> ModelRunner:
    return ModelRunner(tiny_config(folder, max_model_len=max_model_len))


def _logits(loaded: ModelRunner, *texts: list[int]) -> list[torch.Tensor]:
    """All logits of each text, in one pass."""
    batch = []
    for text in texts:
        table = loaded.pool.new_table()
        table.resize(len(text))
        batch.append(SequenceRows(table, 0, text, len(text)))
    parts = loaded.forward(batch).split([len(text) for text in texts])
    for rows in batch:
        rows.table.free()
    return list(parts)


def _reference(folder: Path, text: list[int]) -> torch.Tensor:
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    with torch.inference_mode():
        return model(torch.tensor([text])).logits[0]


def _assert_close(ours: torch.Tensor, theirs: torch.Tensor) -> None:
    torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", SCALED)
def test_scaled_rope_is_that_of_transformers(name: str, tmp_path: Path) -> None:
    write(SCALED[name], tmp_path)
    _assert_close(_logits(_runner(tmp_path, 128), TEXT)[0], _reference(tmp_path, TEXT))


def test_longrope_is_chosen_by_the_configured_length(tmp_path: Path) -> None:
    write(LONGROPE, tmp_path)
    short = TEXT[:40]
    long_logits = _reference(tmp_path, TEXT)  # transformers takes the long factors for it
    short_logits = _reference(tmp_path, short)
    assert (long_logits[:40] - short_logits).abs().max() > 0.1  # the factors do matter

    for_long_texts = _runner(tmp_path, ORIGINAL_LEN + 1 + ORIGINAL_LEN)
    _assert_close(_logits(for_long_texts, TEXT)[0], long_logits)
    _assert_close(_logits(for_long_texts, short)[0], long_logits[:40])
    for_short_texts = _runner(tmp_path, ORIGINAL_LEN)
    _assert_close(_logits(for_short_texts, short)[0], short_logits)


def test_a_long_session_does_not_change_a_short_one(tmp_path: Path) -> None:
    write(LONGROPE, tmp_path)
    loaded = _runner(tmp_path, 128)
    short = TEXT[:40]
    (alone,) = _logits(loaded, short)
    beside, _ = _logits(loaded, short, TEXT)
    _, after = _logits(loaded, TEXT, short)
    assert torch.equal(alone, beside)
    assert torch.equal(alone, after)
