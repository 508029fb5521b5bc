"""Trees of drafts bring more tokens a round than chains: counted on the demo's target."""

from __future__ import annotations

from pathlib import Path

import pytest

from loadtest.acceptance.rounds import EnginePair
from loadtest.report.prompts import demo_prompts
from loadtest.trees import (
    CHAIN,
    DRAFT,
    FOLDERS,
    TREE,
    TextDiffers,
    chain_of,
    claims_of,
    draft_pair,
    load,
    measure,
    measure_draft,
    places_of,
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


def draft_model(noise: float, folder: Path) -> EnginePair:
    return EnginePair(
        draft_pair(DRAFT, noise, folder),
        dtype="float32",
        batch=16,
        max_model_len=1024,
        num_threads=1,
    )


@pytest.mark.slow
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_so_do_those_of_a_draft_model_that_is_often_wrong(
    temperature: float, tmp_path: Path
) -> None:
    """Also in fewer draft steps; of one that is mostly right the best tree is the chain."""
    prompts = demo_prompts(32)
    halves = prompts[:16], prompts[16:]
    wrong = measure_draft(draft_model(0.5, tmp_path), temperature, (4, 8), halves, 30)
    assert all(line[TREE] > line[CHAIN] > 1 for line in wrong)
    assert all(line["depth"] < line["rows"] for line in wrong)
    (right,) = measure_draft(draft_model(0.0, tmp_path), temperature, (4,), halves, 30)
    assert right[TREE] == right[CHAIN] > wrong[0][TREE]
    assert right["depth"] == 4


def test_a_text_that_depends_on_the_way_is_seen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    take_any_leaf(monkeypatch)
    prompts = demo_prompts(8)
    with pytest.raises(TextDiffers, match="tree of 6 rows at temperature 1"):
        measure_draft(draft_model(0.5, tmp_path), 1.0, (6,), (prompts[:4], prompts[4:]), 20)


def test_a_shape_is_places_of_a_chain_and_ranks_beside_it() -> None:
    assert places_of([(-1, 0), (0, 0), (-1, 1), (1, 1), (0, 1)]) == (3, [(0, 1), (2, 1), (1, 1)])
    assert places_of(chain_of(4)) == (4, [])
