"""What drafts in a target's process is known from its config alone."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from models.heads.config import TargetHeads, target_heads
from models.protocol.messages import MAX_DRAFT_TOKENS

DEMO = Path(__file__).parents[3] / "models" / "demo"


def test_kind_and_longest_draft() -> None:
    assert target_heads(None, None) is None
    assert target_heads(None, 2) == TargetHeads("early_exit", MAX_DRAFT_TOKENS)
    assert target_heads(str(DEMO / "mtp"), None) == TargetHeads("mtp", MAX_DRAFT_TOKENS)
    assert target_heads(str(DEMO / "heads"), None) == TargetHeads("medusa", 4)


def test_what_is_not_served_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"has no config\.json"):
        target_heads(str(tmp_path), None)
    (tmp_path / "config.json").write_text(json.dumps({"speculators_model_type": "dflash"}))
    with pytest.raises(ValueError, match="is of model_type 'dflash'; only"):
        target_heads(str(tmp_path), None)
