"""Figures of the scenarios: adaptive k next to every fixed k, to plain decoding, and pinned."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

from loadtest.report.readme.result import Result, table


def scenarios(result: Result) -> str:
    """Show a row for each scenario, with the aims that it missed."""
    head = ["scenario", "plain, tokens/s", "times the best fixed k", "best k"]
    rows = [_row(one) for one in result["scenarios"]]
    claims = [claim for one in result["scenarios"] for claim in one["claims"]]
    num_met = sum(claim["is_met"] for claim in claims)
    verdict = f"{num_met} of {len(claims)} aims are met, {len(claims) - num_met} are **missed**."
    head += ["times plain", "pinned k / the same fixed"]
    return "\n\n".join([table(head, rows), f"{verdict} {_where(result)}", result.made()])


def _where(result: Result) -> str:
    """Count the scenarios by processor; all lines of a scenario ran on the same one."""
    counts = Counter(one["processor"] for one in result["scenarios"])
    return "; ".join(f"{count} scenarios on {name}" for name, count in counts.items()) + "."


def _row(one: Mapping[str, Any]) -> list[str]:
    plain = next(line["tokens_per_s"] for line in one["lines"] if line["way"] == "k=0")
    planning = [_interval(ratio) for ratio in one["planning"].values()]
    return [
        one["name"],
        f"{plain:,.0f}",
        _interval(one["to_best"]["ratio"]),
        " or ".join(dict.fromkeys(one["to_best"]["picked"])).replace("k=", ""),
        _interval(one["to_plain"]),
        ", ".join(planning) or "-",
    ]


def _interval(ratio: Mapping[str, float]) -> str:
    return f"{ratio['value']:.2f} ({ratio['low']:.2f}-{ratio['high']:.2f})"
