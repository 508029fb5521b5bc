"""Trees of drafts bring more tokens a round than chains: counted on the demo's target."""

from __future__ import annotations

import pytest

from loadtest.report.prompts import demo_prompts
from loadtest.trees import (
    CHAIN,
    FOLDERS,
    TREE,
    TextDiffers,
    claims_of,
    load,
    measure,
)
from tests.cases.wrong_trees import take_any_leaf


@pytest.mark.slow
@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("folder", FOLDERS)
def test_trees_bring_more_and_the_same_text(folder: str, temperature: float) -> None:
    """Of as many rows as the heads go, no less; of twice as many, more. Counts, no times."""
    prompts = demo_prompts(32)
    runner = load(folder, "float32", 1)
    four, eight = measure(runner, temperature, (4, 8), (prompts[:16], prompts[16:]), 30)
    assert four[TREE] > 0.98 * four[CHAIN]
    assert eight[TREE] > four[CHAIN] == eight[CHAIN] > 1
    assert all(claim.is_met for claim in claims_of([{"folder": folder} | eight]))


def test_a_text_that_depends_on_the_way_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    take_any_leaf(monkeypatch)
    prompts, runner = demo_prompts(8), load("models/demo/heads", "float32", 1)
    with pytest.raises(TextDiffers, match="tree of 6 rows at temperature 1"):
        measure(runner, 1.0, (6,), (prompts[:4], prompts[4:]), 20)
