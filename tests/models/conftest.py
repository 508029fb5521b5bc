"""The small vocabulary that grammar tests share, and its compiler; kernels without a GPU."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from models.grammar.compiler import GrammarCompiler
from tests.cases.grammar import Vocabulary, small_vocabulary

# Read when a kernel is defined: on a machine without a GPU Triton interprets them.
if not Path("/proc/driver/nvidia").exists():
    os.environ.setdefault("TRITON_INTERPRET", "1")


@pytest.fixture(scope="module")
def vocabulary() -> Vocabulary:
    return small_vocabulary()


@pytest.fixture(scope="module")
def compiler(vocabulary: Vocabulary) -> GrammarCompiler:
    return vocabulary.compiler()
