"""Expected figures beside measured ones: nothing is shown that the kept results do not say."""

from __future__ import annotations

import json

from loadtest.report.readme.result import RESULTS
from loadtest.report.readme.when import expected_by_use


def test_a_measured_value_below_the_expected_one_is_counted_as_such() -> None:
    shown = expected_by_use(RESULTS)
    study = json.loads((RESULTS / "study-349m" / "study.json").read_text(encoding="utf-8"))
    [code] = [one for one in study["findings"]["choices"] if one["task"] == "code"]
    assert f"| code | 2.5-3.5, k 5-7 | {code['speed_up']:.2f} (k {code['k']}) |" in shown
    rows = [line.split(" | ") for line in shown.splitlines() if line.startswith("| ")][2:]
    reached = num = 0
    for _, expected, *cells in rows:
        low = expected.partition("-")[0]
        for cell in cells:
            if low and cell.strip(" |") != "-":
                num += 1
                reached += float(cell.split()[0]) >= float(low)
    assert f"{reached} of {num} measured values reach what is expected." in shown
    assert 0 < reached < num
