"""Weights of fewer bits change little in what a target predicts."""

from __future__ import annotations

from dataclasses import replace

from loadtest.experiments.passes import quality
from loadtest.frame.experiment import Terms
from loadtest.frame.pairs import find_models
from loadtest.frame.ways import Way


def test_a_rounded_target_says_nearly_the_same() -> None:
    engine = {"max_model_len": 256, "kv_cache_tokens": 512, "num_threads": 1}
    models = replace(find_models("demo"), engine=engine)
    ways = {"plain": Way(), "q8": Way(target={"quantization": "q8"})}
    with quality(ways)(Terms(count=1, tokens=1, turn=0, models=models), {}) as lines:
        plain, rounded = (turn() for turn in lines.values())
    assert plain["agreement"] == 1.0
    assert 0.9 < rounded["agreement"] < 1.0
    assert 0.99 < rounded["perplexity"] / plain["perplexity"] < 1.02
    assert rounded["weights_mb"] < 0.75 * plain["weights_mb"]
