"""Several ways to answer the same requests, by turns, each next to plain decoding."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal

from loadtest.report.interleaved import interleave, median_ratio
from loadtest.study.engines import Ask, Engines, Served, Way

PLAIN = "k=0"
Rate = Literal["decode", "all"]

_WARM_UP_TOKENS = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One way: medians over its runs. Rates are tokens per second; `speed_up` is of plain's."""

    way: str
    tokens_per_s: float
    runs: list[float]  # in order of turns
    speed_up: float  # median of the turns' own ratios
    tokens_per_round: float  # in rounds with a draft
    acceptance: float  # accepted / drafted tokens
    mean_k: float
    round_ms: dict[str, float]  # draft, verify, queue, link and loop, of a round
    is_same_text: bool  # as it should be by plain decoding, in every run


def lines_by_turns(
    runs_of: Mapping[str, Callable[[], Served]],
    repeats: int,
    rate: Rate,
    plain: str = PLAIN,
    texts_of: Callable[[str], str] | None = None,
) -> list[Line]:
    """Run every way once a turn; `plain` is the one that the others' speed is compared with.

    `texts_of` names the way whose texts a way should have; None: `plain` for all.
    """
    found = interleave(runs_of, repeats)
    rates = {name: [_rate(run, rate) for run in runs] for name, runs in found.items()}
    texts = {name: [one.token_ids for one in runs[0].answers] for name, runs in found.items()}
    lines = []
    for name, runs in found.items():
        own = [run.summary() for run in runs]
        wanted = texts[texts_of(name) if texts_of else plain]
        lines.append(
            Line(
                way=name,
                tokens_per_s=statistics.median(rates[name]),
                runs=rates[name],
                speed_up=_speed_up(rates[name], rates[plain]),
                tokens_per_round=statistics.median(run.tokens_per_round for run in own),
                acceptance=statistics.median(run.acceptance for run in own),
                mean_k=statistics.median(run.mean_k for run in own),
                round_ms={
                    part: statistics.median(run.round_ms[part] for run in own)
                    for part in own[0].round_ms
                },
                is_same_text=all(
                    [answer.token_ids for answer in run.answers] == wanted for run in runs
                ),
            )
        )
    return lines


def measure_ways(
    engines: Engines, asks: Sequence[Ask], ways: Sequence[Way], batch: int, repeats: int, rate: Rate
) -> list[Line]:
    """Measure the ways of one draft, plain decoding among them, after a short run of each."""
    lines: dict[str, Callable[[], Served]] = {
        way.name: partial(engines.run, asks, way, batch) for way in ways
    }
    short = [replace(ask, max_tokens=min(_WARM_UP_TOKENS, ask.max_tokens)) for ask in asks[:batch]]
    for way in ways:
        engines.run(short, way, batch)
    return lines_by_turns(lines, repeats, rate)


def ways_of(draft: str, ks: Sequence[int]) -> list[Way]:
    """Plain decoding, every k, and k chosen live."""
    return [Way(draft, k) for k in (0, *ks, None)]


def fixed(lines: Sequence[Mapping[str, Any]]) -> dict[int, float]:
    """Speed-up by fixed k above 0, of lines as they are in a record."""
    ks = {line["way"].removeprefix("k="): line["speed_up"] for line in lines}
    return {int(k): float(speed) for k, speed in ks.items() if k.isdigit() and k != "0"}


def _rate(run: Served, rate: Rate) -> float:
    return run.decode_tokens_per_s if rate == "decode" else run.tokens_per_s


def _speed_up(rates: Sequence[float], plain: Sequence[float]) -> float:
    """0.0 where an answer had nothing after its first tokens."""
    return median_ratio(rates, plain) if min(plain) > 0 else 0.0
