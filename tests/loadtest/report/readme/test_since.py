"""A page says what the code got after a result was measured, until it is measured anew."""

from __future__ import annotations

from dataclasses import replace
from datetime import date, timedelta

from loadtest.report.machine import ROOT
from loadtest.report.readme.result import RESULTS, Result
from loadtest.report.readme.since import CHANGES, age


def of_day(name: str, day: str) -> Result:
    result = Result.load(name, ROOT)
    machine = {**result["machine"], "date": day}
    return replace(result, content={**result.content, "machine": machine})


def test_a_result_names_what_came_after_it() -> None:
    made = of_day("heads", "2026-11-01").made_in_short()
    for change in CHANGES:
        assert change.name in made
    the_day_before = date.fromisoformat(CHANGES[-1].day) - timedelta(days=1)
    later = of_day("heads", the_day_before.isoformat()).made()
    assert CHANGES[-1].name in later
    assert CHANGES[0].name not in later


def test_measured_anew_it_names_nothing() -> None:
    for path in RESULTS.glob("*.json"):
        assert "Measured before" not in of_day(path.stem, CHANGES[-1].day).made(), path.stem
        oldest = of_day(path.stem, "2026-11-01").made()
        assert oldest.endswith("."), path.stem
        assert f"Measured before: {CHANGES[0].name}" in oldest, path.stem


def test_changes_are_in_order_and_no_result_is_of_tomorrow() -> None:
    days = [date.fromisoformat(change.day) for change in CHANGES]
    assert days == sorted(days)


def test_the_draft_model_of_the_demo_is_no_matter_of_other_pairs() -> None:
    draft = next(change.name for change in CHANGES if "draft model" in change.name)
    assert draft in age("scenarios-demo", "2026-11-22")
    assert draft not in age("llama-smollm2", "2026-11-22")
    assert draft not in age("scenarios-349m-18m", "2026-11-22")
