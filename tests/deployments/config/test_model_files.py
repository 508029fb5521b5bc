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
