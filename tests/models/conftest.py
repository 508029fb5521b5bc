"""The small vocabulary that grammar tests share, its compiler, and which texts a grammar takes."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from models.grammar.compiler import GrammarCompiler
from models.protocol.messages import Grammar
from tests.cases.grammar import Vocabulary, small_vocabulary
from tests.cases.rules import accepts


@pytest.fixture(scope="module")
def vocabulary() -> Vocabulary:
    return small_vocabulary()


@pytest.fixture(scope="module")
def compiler(vocabulary: Vocabulary) -> GrammarCompiler:
    return vocabulary.compiler()


@pytest.fixture(scope="module")
def taken(
    vocabulary: Vocabulary, compiler: GrammarCompiler
) -> Callable[[Grammar, list[str]], list[str]]:
    """Return a function that keeps of some texts those that a grammar takes whole."""

    def taken_by(grammar: Grammar, texts: list[str]) -> list[str]:
        compiled = compiler.compile(grammar)
        return [text for text in texts if accepts(compiled, vocabulary, text)]

    return taken_by
