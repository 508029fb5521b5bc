"""The small vocabulary that grammar tests share, and its compiler."""

from __future__ import annotations

import pytest

from models.grammar.compiler import GrammarCompiler
from tests.cases.grammar import Vocabulary, small_vocabulary


@pytest.fixture(scope="module")
def vocabulary() -> Vocabulary:
    return small_vocabulary()


@pytest.fixture(scope="module")
def compiler(vocabulary: Vocabulary) -> GrammarCompiler:
    return vocabulary.compiler()
