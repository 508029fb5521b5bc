from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from deployments.config.model_files import check_models, resolved, with_shared_vocabulary
from deployments.config.schema import AppConfig
from tests.cases.model_folders import tree, write_model


@pytest.mark.parametrize(
    ("draft", "complaint"),
    [
        (
            {"swapped": (3, 5)},
            "draft.model_path: token id 3 is 't5' in the draft's .* and 't3' in the target's",
        ),
        ({"special": "<end>"}, "token id 0 is '<end>' in the draft's .* and '<e>' in the target's"),
        (
            {"vocab_size": 7, "num_tokens": 7},
            "vocab_size 7 of .*draft is less than the 8 token ids",
        ),
        ({"max_len": 100}, "draft.max_model_len: 2048 is more than .* 100"),
    ],
    ids=["token", "special", "vocab-size", "context"],
)
def test_pair_that_does_not_fit_is_refused(
    tmp_path: Path, draft: dict[str, Any], complaint: str
) -> None:
    values = tree(tmp_path)
    values["draft"] = {"model_path": write_model(tmp_path / "draft", **draft)}
    with pytest.raises(ValueError, match=complaint):
        check_models(resolved(AppConfig.model_validate(values)))


@pytest.mark.parametrize(
    ("draft", "num_shared"),
    [({}, 8), ({"vocab_size": 16}, 8), ({"num_tokens": 6}, 6), ({"num_tokens": 11}, 8)],
    ids=["equal", "padded", "fewer-tokens", "more-tokens"],
)
def test_pair_that_fits_is_accepted(tmp_path: Path, draft: dict[str, Any], num_shared: int) -> None:
    values = tree(tmp_path)
    path = write_model(tmp_path / "draft", **{"vocab_size": 11, **draft})
    values["draft"] = {"model_path": path}
    config = resolved(AppConfig.model_validate(values))
    check_models(config)
    shared = with_shared_vocabulary(config)
    assert shared.draft is not None
    assert shared.draft.vocab_size == num_shared
    assert shared.target == config.target


def test_without_a_draft_the_vocabulary_stays(tmp_path: Path) -> None:
    config = resolved(AppConfig.model_validate(tree(tmp_path)))
    assert with_shared_vocabulary(config) == config


def test_a_tokenizer_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    values = tree(tmp_path)
    values["draft"] = {"model_path": write_model(tmp_path / "draft")}
    (tmp_path / "draft" / "tokenizer.json").write_text("[]")
    with pytest.raises(ValueError, match=r"cannot read .*draft/tokenizer\.json"):
        check_models(resolved(AppConfig.model_validate(values)))


@pytest.mark.parametrize("missing", ["config.json", "tokenizer.json", "model.safetensors"])
def test_missing_file_is_named(tmp_path: Path, missing: str) -> None:
    config = resolved(AppConfig.model_validate(tree(tmp_path)))
    (tmp_path / "target" / missing).unlink()
    with pytest.raises(ValueError, match=rf"target\.model_path: .* has no .*{missing[-11:]}"):
        check_models(config)


def test_one_longest_session_must_fit_in_the_cache(tmp_path: Path) -> None:
    config = resolved(AppConfig.model_validate(tree(tmp_path, kv_cache_tokens=1024)))
    with pytest.raises(ValueError, match=r"target\.kv_cache_tokens: 1024 is less than"):
        check_models(config)
