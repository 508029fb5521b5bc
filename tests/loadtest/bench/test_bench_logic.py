"""The benchmark's own logic: turns, ratios, claims, what is written, what is drawn."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from loadtest.bench.claims import adaptive_claims, best_assisted_k, best_k, claims_of
from loadtest.bench.loop import SPLIT, LoopRun, Span, rate_at_full_places
from loadtest.bench.plot import draw
from loadtest.bench.record import Record, line_of
from loadtest.report.interleaved import interleave, median_ratio
from loadtest.report.pairs import PairPath


def test_turns_start_with_another_line_each_time() -> None:
    order: list[str] = []
    lines = {name: lambda name=name: len(order) for name in "abc"}
    values = interleave(lines, 3, lambda name, value: order.append(name))
    assert order == list("abc" + "bca" + "cab")
    assert values == {"a": [0, 5, 7], "b": [1, 3, 8], "c": [2, 4, 6]}


def test_ratios_are_taken_within_a_repeat() -> None:
    # The machine is ten times slower in the second repeat; both lines suffer.
    assert median_ratio([20.0, 200.0, 22.0], [10.0, 100.0, 10.0]) == 2.0


def test_what_counts_ends_with_the_first_place_that_stays_empty() -> None:
    spans = [Span(0.0, 2.0, 20), Span(0.0, 4.0, 20), Span(2.0, 3.0, 20)]
    assert rate_at_full_places(spans[:1], 1) == 10.0
    # At 3.0 nobody is left to begin: 20 tokens, 15 of the second, and 20.
    assert rate_at_full_places(spans, 2) == pytest.approx(55.0 / 3.0)
    # Three places are full until 2.0, and one request had not begun to count before.
    assert rate_at_full_places(spans, 3) == pytest.approx((20.0 + 10.0) / 2.0)


def loop_run(rate: float, *, length: float = 2.0) -> LoopRun:
    return LoopRun(rate, length, 0.5, 3.0, dict.fromkeys(SPLIT, rate))


def test_a_line_holds_medians_and_all_runs() -> None:
    line = line_of("engine", "k=3", 1, [loop_run(10.0), loop_run(30.0, length=4.0), loop_run(20.0)])
    assert (line.tokens_per_s, line.runs, line.tokens_per_round) == (20.0, [10.0, 30.0, 20.0], 2.0)
    assert line.round_ms["verify"] == 20.0
    assert line_of("http", "k=0", 1, [3.0, 1.0, 2.0]).tokens_per_s == 2.0


def line(where: str, way: str, batch: int, rate: float) -> dict[str, Any]:
    runs = [rate, rate * 2, rate / 2]
    return {"where": where, "way": way, "batch": batch, "tokens_per_s": rate, "runs": runs}


def pair_content(**passes: float) -> dict[str, Any]:
    lines = [
        line("engine", "bare engine", 1, 51.0),
        line("engine", "k=0", 1, 50.0),
        line("engine", "k=3", 1, 90.0),
        line("engine", "k=10", 1, 99.0),
        line("engine", "adaptive", 1, 400.0),
        line("engine", "transformers", 1, 25.0),
        line("engine", "assisted k=5", 1, 66.0),
        line("engine", "assisted heuristic", 1, 60.0),
        line("engine", "k=0", 8, 240.0),
        line("engine", "k=10", 8, 500.0),
    ]
    line_of_pass = {"name": "1x6", "ratio": passes["ratio"], "to_one_row": passes["to_one_row"]}
    return {"lines": lines, "target": {"passes": [line_of_pass]}}


def test_claims_compare_the_best_fixed_k_of_both() -> None:
    content = pair_content(ratio=1.4, to_one_row=1.3)
    assert best_k(content["lines"]) == 10
    assert best_assisted_k(content["lines"]) == 5
    claims = {claim.text: claim for claim in claims_of(content)}
    spec = claims["engine, batch 1: ours k=10 / transformers assisted k=5"]
    assert spec.value == pytest.approx(1.5)
    assert spec.is_met
    batched = claims["engine, k=0: batch 8 / batch 1"]
    assert batched.value == pytest.approx(4.8)
    assert not batched.is_met
    assert claims["pass of 6 rows / its products"].is_met
    assert not claims["pass of 6 rows / of 1 row"].is_met
    assert "(at most 1.25: MISSED)" in str(claims["pass of 6 rows / of 1 row"])
    # The best fixed k of each half is k=10, by which all turns are compared.
    assert claims["engine, batch 1: adaptive / best fixed k"].value == pytest.approx(400 / 99)
    assert claims["engine, batch 1: adaptive / k=0"].value == pytest.approx(8.0)
    assert len(claims) == 6  # nothing was measured through links, over HTTP or adaptively at 8


def test_claims_of_adaptive_k_have_intervals_and_need_two_turns() -> None:
    lines = [line("http", "k=0", 4, 10.0), line("http", "k=3", 4, 8.0)]
    lines.append({**line("http", "adaptive", 4, 9.0), "runs": [9.0, 20.0, 4.5]})
    to_best, to_plain = adaptive_claims(lines)
    assert (to_best.text, to_best.goal) == ("http, batch 4: adaptive / best fixed k", 0.95)
    assert not to_best.is_met
    assert to_plain.value == pytest.approx(0.9)
    assert to_plain.interval == pytest.approx((0.9, 1.0))
    assert "adaptive / k=0: 0.90 [0.90, 1.00] (at least 0.97: MISSED)" in str(to_plain)
    assert to_plain.record()["interval"] == pytest.approx([0.9, 1.0])
    for each in lines:
        each["runs"] = each["runs"][:1]
    assert adaptive_claims(lines) == []


def test_claims_through_link_and_http() -> None:
    content = pair_content(ratio=1.6, to_one_row=1.0)
    content["lines"] += [
        line("link", "bare engine", 1, 51.0),
        line("link", "k=0", 1, 50.0),
        line("http", "k=3", 1, 80.0),
        line("http", "assisted heuristic", 1, 70.0),
    ]
    claims = {claim.text: claim for claim in claims_of(content)}
    assert claims["batch 1, k=0: time through the link / of the bare engine"].is_met
    over_http = claims["http, batch 1: ours k=3 / transformers assisted heuristic"]
    assert over_http.value == pytest.approx(80 / 70)
    assert not over_http.is_met
    assert not claims["pass of 6 rows / its products"].is_met


def test_the_heuristic_may_be_the_best_assistant() -> None:
    lines = [line("engine", "assisted k=5", 1, 1.0), line("engine", "assisted heuristic", 1, 2.0)]
    assert best_assisted_k(lines) is None


def test_the_record_is_there_before_the_run_is_over(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "bench.json"
    record = Record(path, "loadtest.bench", [], {"threads": 2})
    record.add_lines("demo", [line_of("engine", "k=0", 1, [1.0])])
    halfway = json.loads(path.read_text())
    assert not halfway["is_complete"]
    assert [entry["way"] for entry in halfway["pairs"]["demo"]["lines"]] == ["k=0"]
    record.put("demo", "target", {"passes": []})
    record.finish(note="whole")
    content = json.loads(path.read_text())
    assert content["is_complete"]
    assert content["note"] == "whole"
    assert content["pairs"]["demo"]["target"] == {"passes": []}
    assert content["machine"]["torch"]
    assert list(path.parent.iterdir()) == [path]


def test_pairs_are_named_by_label_or_folder(tmp_path: Path) -> None:
    for part in ("target", "draft"):
        (tmp_path / part).mkdir()
        (tmp_path / part / "config.json").write_text("{}")
    assert PairPath.parse(str(tmp_path)).label == tmp_path.name
    assert PairPath.parse(f"grown={tmp_path}") == PairPath("grown", tmp_path)
    with pytest.raises(ValueError, match=r"has no target/config\.json"):
        PairPath.parse(str(tmp_path / "target"))


def test_the_plot_shows_every_way(tmp_path: Path) -> None:
    content = pair_content(ratio=1.4, to_one_row=1.3)
    one_pass = {"name": "1x6", "ratio": 1.4, "pass_ms": 20.0, "products_ms": 14.0}
    content["target"]["passes"] = [one_pass, {**one_pass, "name": "512 new"}]
    path = tmp_path / "bench.png"
    draw({"demo": content, "grown": content}, path)
    assert path.read_bytes().startswith(b"\x89PNG")
