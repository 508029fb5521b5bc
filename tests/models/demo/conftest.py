"""The shipped tokenizer and the words of the training texts."""

from __future__ import annotations

from pathlib import Path

import pytest
from transformers import PreTrainedTokenizerFast

from models.demo.data.words import Pools, load_pools

TARGET = Path(__file__).parents[3] / "models" / "demo" / "target"


@pytest.fixture(scope="session")
def tokenizer() -> PreTrainedTokenizerFast:
    loaded: PreTrainedTokenizerFast = PreTrainedTokenizerFast.from_pretrained(TARGET)
    return loaded


@pytest.fixture(scope="session")
def pools() -> Pools:
    """Return the words that texts to train on have."""
    return load_pools(None, held_out=False)
