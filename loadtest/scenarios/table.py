"""The table of all scenarios, for people."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

_LEAST_SHARE = 0.03  # share of rounds; a rarer k is not shown


def lines_of(scenarios: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Yield the table line by line, from the record's entries.

    Ratios are medians over turns with 95% intervals. "planning": a k inside the planner's
    machinery over the same k fixed. Each k comes with its tokens/s over plain decoding, then with
    its share of the adaptive rounds.
    """
    width = max((len(one["name"]) for one in scenarios), default=0)
    yield "  ".join(
        (
            f"{'scenario':{width}}{'plain/s':>9}{'adaptive / best fixed k':>25}",
            f"{'adaptive / plain':>17}  {'planning':22}fixed k / plain; chosen k, % of rounds",
        )
    )
    for one in scenarios:
        speed = {line["way"]: line["tokens_per_s"] for line in one["lines"]}
        best = "|".join(dict.fromkeys(one["to_best"]["picked"]))
        cells = (
            f"{one['name']:{width}}{speed['k=0']:>9.0f}",
            f"{_estimate(one['to_best']['ratio'])} {best:7}",
            _estimate(one["to_plain"]),
            " ".join(f"k={k}: {_estimate(value)}" for k, value in one["planning"].items()),
            _ratios(speed),
            _shares(one["lines"]),
        )
        yield "  ".join(cells)


def _estimate(values: Mapping[str, float]) -> str:
    return f"{values['value']:.2f} [{values['low']:.2f}, {values['high']:.2f}]"


def _ratios(speed: Mapping[str, float]) -> str:
    fixed = [way for way in speed if way.startswith("k=") and way != "k=0"]
    return " ".join(f"{way[2:]}: {speed[way] / speed['k=0']:.2f}" for way in fixed)


def _shares(lines: Sequence[Mapping[str, Any]]) -> str:
    """Show how often each k was chosen; for a service only the mean is known."""
    line = next(line for line in lines if line["way"] == "adaptive")
    if not line["rounds_by_k"]:
        return f"; {line['mean_k']:.1f} in {100 * line['drafted_share']:.0f}%"
    shown = (
        f"{k}: {100 * share:.0f}%"
        for k, share in line["rounds_by_k"].items()
        if share >= _LEAST_SHARE
    )
    return "; " + " ".join(shown)
