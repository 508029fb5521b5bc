"""Gaps of a stream beside a long prompt: the arithmetic, and a real run on the demo pair."""

from __future__ import annotations

import dataclasses

import pytest

from loadtest.bench.claims import claims_of
from loadtest.bench.gap import GapRun, gaps_around, measure_gaps
from loadtest.bench.link import linked
from loadtest.bench.record import print_pair
from loadtest.report.machine import ROOT
from loadtest.report.prompts import demo_prompts

# Five arrivals of warm-up, one a second until 10, one every three seconds, then every two.
ARRIVALS = [0.0, 0.9, 1.1, 2.9, 3.0, *range(4, 11), 13.0, 16.0, 19.0, 22.0, 24.0, 26.0]


def test_gaps_beside_are_those_that_end_then_and_quiet_ones_lie_before_or_after() -> None:
    quiet, beside = gaps_around(ARRIVALS, 10.5, 20.0)
    assert quiet == [1.0] * 7 + [2.0] * 2
    assert beside == [3.0] * 3


def test_too_few_gaps_are_an_error() -> None:
    with pytest.raises(ValueError, match="the stream had 2 gaps, at least 3 are needed"):
        gaps_around(ARRIVALS, 10.5, 17.0)


def test_of_several_runs_the_median_is_claimed() -> None:
    runs = [
        {"way": way, "num_prompt_tokens": 2000, "slowdown": slowdown}
        for way, slowdown in [("k=0", 1.5), ("adaptive", 2.5), ("k=0", 3.0), ("k=0", 1.9)]
    ]
    without_drafts, adaptive = claims_of({"lines": [], "gaps": runs})
    assert without_drafts.text.startswith("k=0: ")
    assert (without_drafts.value, without_drafts.is_met) == (1.9, True)
    assert (adaptive.value, adaptive.is_met) == (2.5, False)


@pytest.mark.slow
def test_a_long_prompt_beside_a_stream_of_the_demo(capsys: pytest.CaptureFixture[str]) -> None:
    prompt, *others = demo_prompts(60)
    long_prompt = [token for other in others for token in other][:800]
    assert len(long_prompt) == 800
    with linked(
        ROOT / "models" / "demo",
        dtype="bfloat16",
        target_threads=1,
        draft_threads=1,
        max_model_len=1024,
    ) as link:
        run = measure_gaps(link, prompt[:200], long_prompt, k=0)
    assert run.way == "k=0"
    assert run.num_gaps >= 3
    assert 0 < run.quiet_ms <= run.quiet_worst_ms
    assert run.slowdown == pytest.approx(run.beside_ms / run.quiet_ms)
    assert run.first_token_s > run.alone_first_token_s > 0
    _shows(run, capsys)


def _shows(run: GapRun, capsys: pytest.CaptureFixture[str]) -> None:
    content = {"lines": [], "gaps": [dataclasses.asdict(run)]}
    (claim,) = claims_of(content)
    assert claim.value == run.slowdown
    assert claim.is_met == (run.slowdown <= 2.0)
    print_pair("demo", content)
    assert "k=0, 800 tokens" in capsys.readouterr().out
