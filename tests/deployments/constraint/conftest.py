from __future__ import annotations

import pytest

from tests.cases.grammar import small_tokenizer


@pytest.fixture(scope="session")
def tokenizer_path(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("tokenizer") / "tokenizer.json"
    small_tokenizer().save(str(path))
    return str(path)
