"""Served greedy text is that of `transformers.generate` on the same float32 checkpoint.

A position counts as a mismatch only where the reference's two best logits are more than 1e-4
apart; both counts are printed. The whole path is real, in one process: router loop, engines.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from loadtest.report.prompts import demo_prompts as held_out_prompts
from router.limits import SpeculationLimits
from tests.harness.greedy_references import Reference, count_differences, generated, served_texts
from tests.harness.local import DEMO, local_service

NUM_PROMPTS = 50
NUM_TOKENS = 40
NUM_LOOKUP_PROMPTS = 12


@pytest.fixture(scope="module")
def references() -> list[Reference]:
    return generated(DEMO / "target", held_out_prompts(NUM_PROMPTS), NUM_TOKENS)


@pytest.mark.slow
@pytest.mark.timeout(600)
async def test_served_text_is_that_of_generate(
    references: list[Reference], capsys: pytest.CaptureFixture[str]
) -> None:
    async with local_service(DEMO / "target", DEMO / "draft", dtype="float32") as service:
        for at_once in (1, 8):
            for k in (0, 1, 3, 5, 8, None):
                served = await served_texts(service, references, k, at_once)
                mismatches, near_ties = count_differences(references, served)
                name = "adaptive" if k is None else k
                with capsys.disabled():
                    print(
                        f"\nk={name} at_once={at_once}: {mismatches} mismatches and {near_ties} "
                        f"near ties in {len(served)} texts of {NUM_TOKENS} tokens"
                    )
                assert mismatches == 0
        assert await service.freed()


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("draft", [None, DEMO / "draft"], ids=["alone", "with-model"])
@pytest.mark.parametrize("depth", [0, 24], ids=["ngram", "suffix"])
async def test_no_free_drafter_changes_a_text(
    references: list[Reference], draft: Path | None, depth: int
) -> None:
    chosen = references[:NUM_LOOKUP_PROMPTS]
    lookup = SpeculationLimits(prompt_lookup_max=4, suffix_decoding_max_tree_depth=depth)
    async with local_service(
        DEMO / "target", draft, dtype="float32", speculation=lookup
    ) as service:
        for at_once, k in ((1, 5), (8, None)):
            served = await served_texts(service, chosen, k, at_once)
            assert count_differences(chosen, served)[0] == 0


def test_the_comparison_sees_a_wrong_token() -> None:
    reference = Reference([1], [5, 6, 7], [1.0, 1e-5, 1.0])
    assert count_differences([reference], [[5, 6, 8]]) == (1, 0)
    assert count_differences([reference], [[5, 9, 8]]) == (0, 1)
    assert count_differences([reference], [[5, 6, 7]]) == (0, 0)
