"""Gaps of a stream beside a long prompt: the arithmetic, and a real run on the demo pair."""

from __future__ import annotations

from dataclasses import replace

import pytest

from loadtest.experiments.gaps import beside, gaps_around
from loadtest.frame.experiment import Terms
from loadtest.frame.pairs import find_models
from loadtest.frame.ways import Way

# Five arrivals of warm-up, one a second until 10, one every three seconds, then every two.
ARRIVALS = [0.0, 0.9, 1.1, 2.9, 3.0, *range(4, 11), 13.0, 16.0, 19.0, 22.0, 24.0, 26.0]


def test_gaps_beside_are_those_that_end_then_and_quiet_ones_lie_before_or_after() -> None:
    quiet, slowed = gaps_around(ARRIVALS, 10.5, 20.0)
    assert quiet == [1.0] * 7 + [2.0] * 2
    assert slowed == [3.0] * 3


def test_too_few_gaps_are_an_error() -> None:
    with pytest.raises(ValueError, match="the stream had 2 gaps, at least 3 are needed"):
        gaps_around(ARRIVALS, 10.5, 17.0)


@pytest.mark.day(1)
@pytest.mark.slow
def test_a_long_prompt_beside_a_stream_of_the_demo() -> None:
    engine = {"max_model_len": 1024, "kv_cache_tokens": 4096, "num_threads": 1}
    terms = Terms(count=1, tokens=1, turn=0, models=replace(find_models("demo"), engine=engine))
    with beside(800)(terms, {"k=0": Way(k=0)}) as lines:
        lines["k=0"]()  # the first prompt takes longer
        found = lines["k=0"]()
    assert 0 < found["quiet_ms"] <= found["quiet_worst_ms"]
    assert found["slowdown"] == pytest.approx(found["beside_ms"] / found["quiet_ms"])
    assert min(found["first_s"], found["alone_first_s"]) > 0
