"""The page of figures is what the kept records say, missed aims included."""

from __future__ import annotations

from loadtest.frame.page import PAGE, by_way, page, verdict


def row(way: str, runs: list[float]) -> dict[str, object]:
    return {
        "stage": "engine",
        "workload": "story",
        "batch": 1,
        "way": way,
        "runs": {"tokens_per_s": runs},
    }


def test_the_page_is_up_to_date() -> None:
    assert PAGE.read_text(encoding="utf-8") == page()


def test_a_line_has_medians_and_ratios_within_a_turn() -> None:
    lines = list(by_way([row("plain", [10.0, 100.0, 20.0]), row("k=3", [20.0, 150.0, 30.0])]))
    assert lines[0] == "| tokens_per_s | plain | k=3 |"
    assert lines[2] == "| engine, story, 1 | 20 | 30 (1.50) |"


def test_an_aim_that_was_missed_is_called_so() -> None:
    claim = {"text": "a / b", "value": 0.9, "relation": "at least", "goal": 1.0, "is_met": False}
    met = claim | {"is_met": True}
    text = verdict({"claims": [claim, met]})
    assert text.startswith("1 of 2 aims were met.")
    assert "**missed**: a / b: 0.90 (at least 1)" in text


def test_a_run_that_was_cut_is_called_so() -> None:
    assert "not complete" in verdict({"claims": [], "is_complete": False})
