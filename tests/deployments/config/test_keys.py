"""Keys as people write them: what cannot be one is refused by name."""

from __future__ import annotations

import pytest

from deployments.config.schema import AppConfig


def test_a_value_that_is_no_yaml_is_refused_by_its_key() -> None:
    with pytest.raises(ValueError, match=r"target.model_path: '{x' cannot be read: expected"):
        AppConfig.model_validate({"target.model_path": "{x"})


def test_a_key_that_is_no_text_is_refused_as_one() -> None:
    with pytest.raises(ValueError, match="5"):
        AppConfig.model_validate({5: 1, "target": {"model_path": "x"}})
