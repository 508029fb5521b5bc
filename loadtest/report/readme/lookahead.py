"""Figures of look-aheads: what each way satisfies and costs, of every pair that is kept."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from loadtest.report.readme.result import RESULTS, Result, goal, table

Content = Mapping[str, Any]

# By folder of `loadtest/results`, how a pair is called here.
PAIRS: Mapping[str, str] = {
    "lookahead-smollm2": "SmolLM2-135M, 13M draft",
    "lookahead-concepts": "pair for concept sets",
    "lookahead-concepts-d16": "pair for concept sets, d = 16",
    "lookahead-grown": "grown pair of 63M",
    "lookahead-demo": "demo pair",
}
SPEED = "tokens/s, cdsl / cdlh"
_BEST_SPEED = 6.0  # goal of one pair
_NOTHING = "No result is kept yet."


def lookahead(seen_from: Path) -> str:
    """Satisfaction and cost of every way, by pair and task; the claims behind them."""
    blocks, speeds = [], dict[str, float]()
    for pair, task, result in _kept(seen_from, "compare"):
        head = f"{pair}, {task} ([report]({result.link_to('report.md')}))"
        aims = "; ".join(aim(claim) for claim in result["claims"])
        blocks += [f"{head}:", compared(result.content), f"{aims}.", result.made()]
        speeds |= {
            f"{pair}, {task}": claim["value"]
            for claim in result["claims"]
            if claim["text"] == SPEED
        }
    if speeds:
        best = max(speeds, key=lambda name: speeds[name])
        reached = goal(speeds[best], "at least", _BEST_SPEED)
        blocks.append(f"{SPEED}, the best of these ({best}): {speeds[best]:.2f} ({reached}).")
    return "\n\n".join(blocks) or _NOTHING


def lookahead_in_batches(seen_from: Path) -> str:
    """Sessions at once by pair, and what an ordinary stream has beside them."""
    rows, made = [], []
    for pair, task, result in _kept(seen_from, "batch"):
        rates = [f"{one['sessions']}: {one['tokens_per_s']:.0f}" for one in result["lines"]]
        paces = [f"{one['beside']}: {one['tokens_per_s']:.0f}" for one in result["streams"]]
        rows.append([f"{pair}, {task}", ", ".join(rates), ", ".join(paces)])
        rows[-1].append("; ".join(aim(claim) for claim in result["claims"]))
        made.append(result.made())
    if not rows:
        return _NOTHING
    head = ["pair, task", "tokens/s by sessions", "a stream's tokens/s beside", "aims"]
    return "\n\n".join([table(head, rows), *made])


def compared(content: Content) -> str:
    """The table of one comparison."""
    rows = []
    for line in content["lines"]:
        speed = f"{line['tokens_per_s']:.0f}" if "tokens_per_s" in line else "-"
        rows.append(
            [
                line["way"],
                percent(line["hard"]),
                f"{line['soft']:.2f}",
                f"{line['passes_per_token']:.2f}",
                speed,
                f"{line['logprob']:.2f}",
                f"{line['distinct_1']:.2f}, {line['distinct_2']:.2f}",
            ]
        )
    head = ["way", "hard satisfaction", "soft", "target passes a token", "tokens/s, one at a time"]
    return table([*head, "target's log-probability a token", "distinct 1-, 2-grams"], rows)


def percent(share: Mapping[str, float]) -> str:
    """A share with its interval."""
    return f"{share['value']:.0%} ({share['low']:.0%} to {share['high']:.0%})"


def interval(found: Mapping[str, float]) -> str:
    """A difference of shares, in points."""
    low, value, high = (100 * found[key] for key in ("low", "value", "high"))
    return f"{value:+.0f} ({low:+.0f} to {high:+.0f})"


def aim(claim: Mapping[str, Any]) -> str:
    """What was measured, what was wanted, and whether it was reached."""
    return (
        f"{claim['text']}: {claim['value']:.2f} "
        f"({goal(claim['value'], claim['relation'], claim['goal'])})"
    )


def _kept(seen_from: Path, experiment: str) -> Iterator[tuple[str, str, Result]]:
    for folder, pair in PAIRS.items():
        for file in sorted((RESULTS / folder).glob(f"{experiment}-*.json")):
            task = file.stem.partition("-")[2]
            yield pair, task, Result.load(f"{folder}/{file.stem}", seen_from)
