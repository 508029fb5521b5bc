"""Trees of drafts bring more tokens a round than chains: counted on the demo's target."""

from __future__ import annotations

import pytest

from loadtest.report.prompts import demo_prompts
from loadtest.trees import CHAIN, FOLDERS, TREE, claims_of, load, measure


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
