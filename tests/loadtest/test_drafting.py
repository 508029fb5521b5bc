"""Experiments on drafters: somebody drafts where a way says so, and the aims on heads."""

from __future__ import annotations

from typing import Any

import pytest

from loadtest.experiments.drafting import KINDS, KINDS_HEADS
from loadtest.frame.stages import Models


@pytest.mark.parametrize("experiment", [KINDS, KINDS_HEADS])
def test_repeats_draft_for_a_model_without_a_draft_model(experiment: Any, tmp_path: Any) -> None:
    models = Models(label="real", target=tmp_path, drafts={}, router=experiment.router)
    for way in experiment.ways.values():
        assert models.speculation(way)["suffix_decoding_max_tree_depth"] > 0
