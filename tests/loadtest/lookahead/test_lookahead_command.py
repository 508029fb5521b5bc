"""Experiments with look-aheads on the shipped pair: every part is there, with exact counts."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoModelForCausalLM

from loadtest.lookahead.__main__ import main
from loadtest.lookahead.runs import Bench, Pair, distinct, num_parameters, opened
from loadtest.lookahead.tasks import TASKS
from loadtest.lookahead.terms import CDLH, CDSL, GREEDY, Terms
from loadtest.report.machine import ROOT

DEMO = ROOT / "models" / "demo"
SHORT = [
    *("--prompts", "2", "--length", "3", "--candidates", "2", "--threads", "1", "--at-once", "2"),
]
KEEPS_ALL = "--reward-threshold 0"


@pytest.fixture(scope="module")
def bench() -> Iterator[Bench]:
    with opened(Pair("demo", DEMO / "target", DEMO / "draft")) as found:
        yield found


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_passes_of_a_text_are_those_that_the_engine_counts(bench: Bench) -> None:
    """One at a time. The engine has some more, where roll-outs of a step do not meet in a pass."""
    prompts = TASKS["concepts"].draw("validation", 2)
    ways = [
        *Terms(length=3, candidates=2).ways().values(),
        *Terms(length=3, candidates=2).by_rule("paper", (0.5, 0.5)).ways().values(),
        Terms(length=3, candidates=2, commit="rollout").ways()[CDLH],
    ]
    for way in dict.fromkeys(ways):
        before = bench.num_passes()
        run = bench.answer(prompts, way)
        counted = bench.num_passes() - before
        in_a_row = sum(text.num_passes for text in run.texts)
        assert in_a_row <= counted <= 1.25 * in_a_row, way


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_texts_do_not_depend_on_how_many_are_asked_at_once(bench: Bench) -> None:
    prompts = TASKS["harmless"].draw("held-out", 3)
    alone, together = (bench.answer(prompts.several(n), Terms(length=3)) for n in (1, 3))
    assert [text.token_ids for text in alone.texts] == [text.token_ids for text in together.texts]
    assert [text.states for text in alone.texts] == [text.states for text in together.texts]


@pytest.mark.day(0)
@pytest.mark.slow
@pytest.mark.timeout(600)
def test_every_experiment_keeps_and_tells_a_result(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    more = {
        "compare": "--repeats 1 --speed-prompts 1 --paper-thresholds 0 0 --gain-thresholds 0 0",
        "thresholds": "--accept-thresholds 0 0.5 --reward-thresholds 0 1",
        "verification": KEEPS_ALL,
        "batch": f"--sessions 1 2 --stream-tokens 8 --repeats 1 {KEEPS_ALL}",
        "drafts": KEEPS_ALL,
        "tune": "--lengths 2 --accept-thresholds 0 --reward-thresholds 0 1 --held-out 2",
    }
    for experiment, words in more.items():
        assert main([experiment, *SHORT, *words.split(), "--output", str(tmp_path)]) == 0
    kept = {file.stem: json.loads(file.read_text()) for file in tmp_path.glob("*.json")}
    assert set(kept) == {
        "verification",
        *(f"{name}-concepts" for name in more if name != "verification"),
    }
    lines = kept["compare-concepts"]["lines"]
    ways: dict[tuple[str, str], Any] = {(line["table"], line["way"]): line for line in lines}
    assert ways["", GREEDY]["states"] == {}
    for table, commit in (("paper", "token"), ("gain", "gain"), ("as recommended", "gain")):
        cdlh, cdsl = (ways[table, way] for way in (CDLH, CDSL))
        assert set(cdlh["states"]) == {"lookahead"}
        assert cdlh["terms"]["commit"] == cdsl["terms"]["commit"] == commit
        if table != "as recommended":  # at r_t = 0 every draft is kept
            assert cdsl["passes_per_token"] < cdlh["passes_per_token"]
    assert ways["paper", CDSL]["terms"]["acceptance"] == "paper"
    assert all(line["logprob"] < 0 for line in lines)
    assert set(kept["thresholds-concepts"]["rules"]) == {"paper", "gain"}
    [draft] = kept["drafts-concepts"]["lines"]
    assert draft["draft_parameters"] == num_parameters(DEMO / "draft")
    pass_ms = kept["drafts-concepts"]["target"]["pass_ms"]
    assert draft["measured_step_cost"] == pytest.approx(draft["step_ms"] / pass_ms)
    assert (tmp_path / "lookahead.png").stat().st_size > 10_000
    told = capsys.readouterr().out
    assert "| aim | wanted | paper | gain | as recommended |" in told
    assert "| draft | parameters |" in told
    assert all(str(tmp_path) not in json.dumps(content) for content in kept.values())


def test_parameters_are_those_of_the_model() -> None:
    model: Any = AutoModelForCausalLM.from_pretrained(DEMO / "draft")
    assert num_parameters(DEMO / "draft") == model.num_parameters()


def test_distinct_counts_n_grams_of_all_texts() -> None:
    assert distinct(["a b a", "a b"], 1) == 2 / 5
    assert distinct(["a b a", "a b"], 2) == 2 / 3
    assert distinct(["a"], 2) == 0.0
