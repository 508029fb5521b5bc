"""The page of figures is what the kept records say, missed aims included."""

from __future__ import annotations

from loadtest.frame.page import PAGE, by_way, page, tables, verdict


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


def event(way: str, workload: str = "streams", **measures: float) -> dict[str, object]:
    runs = {measure: [value] for measure, value in measures.items()}
    return {"stage": "http", "workload": workload, "batch": 8, "way": way, "runs": runs}


def test_a_trial_has_a_line_for_each_event_and_a_table_for_each_kind_of_figure() -> None:
    events = [event(f"kill {number}", gap_s=float(number), lost=0) for number in range(1, 7)]
    counts = [event("Router", "replicas", running=2), event("Target", "replicas", running=1)]
    lines = list(tables([*events, *counts]))
    assert lines[0] == "| way | gap_s | lost |"
    assert lines[2:4] == ["| kill 1 | 1 | 0 |", "| kill 2 | 2 (2.00) | 0 |"]
    assert lines[8:] == ["", "| running | Router | Target |", "|---|---|---|", lines[-1]]
    assert lines[-1] == "| http, replicas, 8 | 2 | 1 |", "a count is no ratio"


def test_where_there_is_a_total_its_parts_are_left_to_the_record() -> None:
    parts = [event("A", name, differing=count) for name, count in (("code", 1), ("all", 3))]
    assert list(tables(parts)) == ["| differing | A |", "|---|---|", "| http, all, 8 | 3 |"]


def test_one_way_has_a_column_for_each_measure() -> None:
    rows = [event("k=4", kind, first_ms=number, k=4.0) for number, kind in enumerate(("a", "b"))]
    lines = list(tables(rows))
    assert lines == [
        "| way | first_ms | k |",
        "|---|---|---|",
        "| a, k=4 | 0 | 4 |",
        "| b, k=4 | 1 | 4 |",
    ]


def test_an_aim_that_was_missed_is_called_so() -> None:
    claim = {"text": "a / b", "value": 0.9, "relation": "at least", "goal": 1.0, "is_met": False}
    met = claim | {"is_met": True}
    text = verdict({"claims": [claim, met]})
    assert text.startswith("1 of 2 aims were met.")
    assert "**missed**: a / b: 0.90 (at least 1)" in text


def test_a_run_that_was_cut_is_called_so() -> None:
    assert "not complete" in verdict({"claims": [], "is_complete": False})
