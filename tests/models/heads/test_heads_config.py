"""What drafts in a target's process is known from its config alone."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from models.heads.config import TargetHeads, heads_kind, target_heads
from models.protocol.messages import MAX_DRAFT_TOKENS

DEMO = Path(__file__).parents[3] / "models" / "demo"


def test_kind_and_longest_draft() -> None:
    assert target_heads(None, None) is None
    assert target_heads(None, 2) == TargetHeads("early_exit", MAX_DRAFT_TOKENS)
    assert target_heads(str(DEMO / "mtp"), None) == TargetHeads("mtp", MAX_DRAFT_TOKENS)
    assert target_heads(str(DEMO / "heads"), None) == TargetHeads("medusa", 4)


def write_config(folder: Path, **fields: object) -> Path:
    (folder / "config.json").write_text(json.dumps(fields))
    return folder


@pytest.mark.parametrize(
    ("fields", "kind"),
    [
        ({"model_type": "medusa"}, "medusa"),
        ({"medusa_num_heads": 3}, "medusa"),
        ({"model_type": "mtp"}, "mtp"),
    ],
)
def test_kinds_are_told_apart(fields: dict[str, Any], kind: str, tmp_path: Path) -> None:
    assert heads_kind(write_config(tmp_path, **fields)) == kind


def test_a_folder_without_a_config_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"has no config\.json"):
        target_heads(str(tmp_path), None)


@pytest.mark.parametrize(
    ("fields", "kind"),
    [
        ({"speculators_model_type": "dflash"}, "dflash"),
        ({"model_type": "eagle"}, "eagle"),
        ({"model_type": "llama", "architectures": ["LlamaForCausalLMEagle"]}, "llama"),
    ],
)
def test_another_kind_is_refused(fields: dict[str, Any], kind: str, tmp_path: Path) -> None:
    write_config(tmp_path, **fields)
    with pytest.raises(ValueError, match=f"is of model_type '{kind}'; only medusa, mtp and eagle3"):
        target_heads(str(tmp_path), None)
