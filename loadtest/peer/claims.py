"""Aims for ours next to llama.cpp and transformers: ratios of one run, with intervals.

A ratio is the geometric mean over answers to the same prompt in the same turn. Its interval is the
middle 95% of a bootstrap over these pairs. If the best of several ways counts, one half of the
turns picks it and the other compares it. Luck would otherwise pick it.
"""

from __future__ import annotations

import random
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from loadtest.bench.claims import Claim
from loadtest.peer.timed import PeerLine

OURS = "ours"
LLAMA = "llama.cpp"
TRANSFORMERS = "transformers"
PLAIN = "plain"
REPEATING = ("json", "edits", "summaries")  # tasks whose answers repeat what they were given
_NUM_RESAMPLES = 2000
_PLACES = {"engine": "in one process", "http": "over HTTP"}

Times = Callable[[PeerLine, Sequence[int] | None], list[float]]


@dataclass(frozen=True)
class PeerClaim:
    """A claim, and the interval in which its ratio lies."""

    claim: Claim
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.claim} [{self.low:.2f} to {self.high:.2f}]"

    def record(self) -> dict[str, object]:
        """Return the claim as a dict for the JSON file."""
        return {**self.claim.record(), "interval": [round(self.low, 3), round(self.high, 3)]}


def peer_claims(lines: Sequence[PeerLine]) -> list[PeerClaim]:
    """Return the claims that the lines have numbers for, place by place and threads by threads."""
    found: list[PeerClaim] = []
    places = dict.fromkeys((line.key.where, line.key.threads) for line in lines)
    for where, threads in places:
        here = [line for line in lines if (line.key.where, line.key.threads) == (where, threads)]
        name = f"{_PLACES[where]}, {threads} thread{'s' if threads > 1 else ''}"
        found += _plain(name, here)
        for task in dict.fromkeys(line.key.task for line in here):
            found += _drafted(f"{name}, {task}", [one for one in here if one.key.task == task])
    return found


def _plain(name: str, lines: Sequence[PeerLine]) -> list[PeerClaim]:
    """Time per token without drafts, all tasks together."""
    ours, theirs = (
        [line for line in lines if (line.key.side, line.key.way) == (side, PLAIN)]
        for side in (OURS, LLAMA)
    )
    tasks = {line.key.task for line in ours} & {line.key.task for line in theirs}
    pairs = [
        pair
        for task in sorted(tasks)
        for pair in _pairs(_of_task(theirs, task), _of_task(ours, task), PeerLine.decode_ms, None)
    ]
    text = f"{name}: time per token without drafts, ours / llama.cpp's"
    return _claim(text, pairs, "at most", 1.15)


def _drafted(name: str, lines: Sequence[PeerLine]) -> list[PeerClaim]:
    """Compare the best of our drafted ways with the best of theirs, in one task."""
    drafted = [line for line in lines if line.key.way != PLAIN]
    ours = [line for line in drafted if line.key.side == OURS]
    theirs = [line for line in drafted if line.key.side == LLAMA]
    has_draft = any(line.key.way.startswith("draft ") for line in theirs)
    found = []
    if has_draft:
        found += _best(name, ours, theirs, PeerLine.decode_ms, 1.4)
    elif any(line.key.task in REPEATING for line in lines):
        found += _best(name, ours, theirs, PeerLine.decode_ms, 1.0)
    assisted = [line for line in drafted if line.key.side == TRANSFORMERS]
    return found + _best(f"{name}, whole answers", ours, assisted, PeerLine.whole_ms, 3.0)


def _best(
    name: str, ours: Sequence[PeerLine], theirs: Sequence[PeerLine], times: Times, goal: float
) -> list[PeerClaim]:
    if not ours or not theirs:
        return []
    num_turns = min(len(line.runs) for line in (*ours, *theirs))
    picking, comparing = list(range(0, num_turns, 2)), list(range(1, num_turns, 2))
    best_ours, best_theirs = (
        min(side, key=lambda line: statistics.geometric_mean(times(line, picking)))
        for side in (ours, theirs)
    )
    text = (
        f"{name}: ours {best_ours.key.way} / {best_theirs.key.side} {best_theirs.key.way}, tokens/s"
    )
    pairs = _pairs(best_ours, best_theirs, times, comparing or picking)
    return _claim(text, pairs, "at least", goal)


def _claim(text: str, ratios: Sequence[float], relation: str, goal: float) -> list[PeerClaim]:
    if not ratios:
        return []
    draw = random.Random(7)
    means = sorted(
        statistics.geometric_mean(draw.choices(ratios, k=len(ratios)))
        for _ in range(_NUM_RESAMPLES)
    )
    value = statistics.geometric_mean(ratios)
    claim = Claim(text, value, "at most" if relation == "at most" else "at least", goal)
    return [PeerClaim(claim, means[_NUM_RESAMPLES // 40], means[-_NUM_RESAMPLES // 40])]


def _pairs(
    below: PeerLine, above: PeerLine, times: Times, turns: Sequence[int] | None
) -> list[float]:
    """Times of `above` / times of `below`, answer by answer."""
    return [b / a for a, b in zip(times(below, turns), times(above, turns), strict=True)]


def _of_task(lines: Sequence[PeerLine], task: str) -> PeerLine:
    return next(line for line in lines if line.key.task == task)
