"""Measures one scenario: its lines by turns, and what the turns say of adaptive k.

Lines are plain decoding, every fixed k, adaptive k, and k pinned inside the planner's machinery.
The latter plans as ever and is overruled; next to the same k fixed it shows the cost of planning.
The planner of a line is warmed by some seconds of runs. It is kept between turns, as in a server.
"""

from __future__ import annotations

import math
import statistics
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial

from loadtest.bench.claims import ADAPTIVE_TO_BEST, ADAPTIVE_TO_PLAIN, Claim, at_least
from loadtest.bench.loop import Ask, Learnt, LoopRun, name_of
from loadtest.report.interleaved import interleave
from loadtest.report.ratios import BestRatio, Estimate, ratio_of, ratio_to_best
from loadtest.scenarios.asks import PromptSource, asks_of
from loadtest.scenarios.catalog import Scenario
from loadtest.scenarios.stages import Stage

ADAPTIVE, PLAIN = name_of(None), name_of(0)
_PLANNING = 0.98  # a plan takes at most 2% of a round
_MIXED_TO_BEST = 1.0  # no single k fits all of mixed traffic

Line = Callable[[], LoopRun]


@dataclass(frozen=True, kw_only=True)
class Plan:
    """The runs of each scenario.

    Attributes:
        ks: fixed k above 0.
        pinned: 0 or some of `ks`, each pinned inside the planner's machinery.
        repeats: turns.
        run_s: about how long a run should take; at least every place is filled twice.
        warm_s: how long a line with a planner is run before it counts.
    """

    ks: Sequence[int]
    pinned: Sequence[int]
    repeats: int
    run_s: float
    warm_s: float


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """The results of a scenario; rates in tokens/s in order of turns, by line."""

    scenario: Scenario
    num_asks: int
    runs: Mapping[str, Sequence[LoopRun]]
    pinned: Sequence[int]

    @property
    def rates(self) -> dict[str, list[float]]:
        """Tokens/s of each turn, by line."""
        return {name: [run.tokens_per_s for run in runs] for name, runs in self.runs.items()}

    @property
    def to_best(self) -> BestRatio:
        """Adaptive k over the best fixed k, 0 included."""
        fixed = {name: rates for name, rates in self.rates.items() if name.startswith("k=")}
        return ratio_to_best(self.rates[ADAPTIVE], fixed)

    @property
    def to_plain(self) -> Estimate:
        """Adaptive k over plain decoding."""
        return ratio_of(self.rates[ADAPTIVE], self.rates[PLAIN])

    @property
    def planning(self) -> dict[int, Estimate]:
        """The ratio, by k, of k pinned inside the planner's machinery to the same k fixed."""
        rates = self.rates
        return {k: ratio_of(rates[pinned_name(k)], rates[name_of(k)]) for k in self.pinned}

    def rounds_by_k(self, name: str) -> dict[int, float]:
        """Shares of a line's rounds by their k; a plain step is a round of k = 0."""
        counts: Counter[int] = Counter()
        for run in self.runs[name]:
            counts.update(run.rounds_by_k)
        total = max(1, sum(counts.values()))
        return {k: round(count / total, 4) for k, count in sorted(counts.items())}

    def claims(self) -> list[Claim]:
        """Return the aims and their verdicts."""
        name = self.scenario.name
        goal = _MIXED_TO_BEST if self.scenario.kind == "mixed" else ADAPTIVE_TO_BEST
        claims = [
            at_least(f"{name}: adaptive / best fixed k", self.to_best.ratio, goal),
            at_least(f"{name}: adaptive / plain", self.to_plain, ADAPTIVE_TO_PLAIN),
        ]
        for k, estimate in self.planning.items():
            text = f"{name}: k={k} inside the planner / k={k} fixed"
            claims.append(at_least(text, estimate, _PLANNING))
        return claims

    def record(self) -> dict[str, object]:
        """Return the results as a dict for the JSON file."""
        return {
            "name": self.scenario.name,
            **asdict(self.scenario),
            "num_asks": self.num_asks,
            "lines": [self._line(name) for name in self.runs],
            "to_best": asdict(self.to_best),
            "to_plain": asdict(self.to_plain),
            "planning": {k: asdict(estimate) for k, estimate in self.planning.items()},
            "claims": [claim.record() for claim in self.claims()],
        }

    def _line(self, name: str) -> dict[str, object]:
        runs = self.runs[name]
        return {
            "way": name,
            "tokens_per_s": round(statistics.median(self.rates[name]), 2),
            "runs": [round(rate, 2) for rate in self.rates[name]],
            "tokens_per_round": round(statistics.median(r.tokens_per_round for r in runs), 3),
            "mean_k": round(statistics.median(r.mean_k for r in runs), 2),
            "drafted_share": round(statistics.median(r.drafted_share for r in runs), 3),
            "acceptance": round(statistics.median(r.acceptance for r in runs), 3),
            "rounds_by_k": self.rounds_by_k(name),
        }


def pinned_name(k: int) -> str:
    """Return the name of the line that has `k` inside the planner's machinery."""
    return f"pinned k={k}"


def measure(
    scenario: Scenario,
    stage: Stage,
    prompts: PromptSource,
    plan: Plan,
    on_done: Callable[[], None] = lambda: None,
) -> Outcome:
    """Run all lines of a scenario by turns.

    Args:
        scenario: what to measure.
        stage: where; its models are loaded.
        prompts: of its pair.
        plan: which lines, how often, how long.
        on_done: called after every run that counts.
    """
    asks = _enough_asks(scenario, stage, prompts, plan.run_s)
    lines = _lines(scenario, stage, asks, plan)
    for name, line in lines.items():
        _warm(line, 0.0 if name.startswith("k=") else plan.warm_s)
    runs = interleave(lines, plan.repeats, lambda name, run: on_done())
    return Outcome(scenario=scenario, num_asks=len(asks), runs=runs, pinned=_pinned(scenario, plan))


def _warm(line: Line, warm_s: float) -> None:
    """Run a line once, for what is made at a first pass, and on until its planner has learnt."""
    began_s = time.perf_counter()
    line()
    while time.perf_counter() - began_s < warm_s:
        line()


def num_runs(scenario: Scenario, plan: Plan) -> int:
    """Return how often `measure` calls `on_done`."""
    return (2 + len(plan.ks) + len(_pinned(scenario, plan))) * plan.repeats


def _pinned(scenario: Scenario, plan: Plan) -> Sequence[int]:
    """Return the k that are pinned.

    There is none over HTTP, because a service makes its planner itself.
    """
    return () if scenario.where == "http" else plan.pinned


def _lines(scenario: Scenario, stage: Stage, asks: Sequence[Ask], plan: Plan) -> dict[str, Line]:
    run = partial(stage.serve, asks, batch=scenario.batch)
    lines: dict[str, Line] = {
        name_of(k): partial(run, k=k, learnt=Learnt()) for k in (0, *plan.ks, None)
    }
    for k in _pinned(scenario, plan):
        lines[pinned_name(k)] = partial(run, k=None, learnt=Learnt(pinned=k))
    return lines


def _enough_asks(
    scenario: Scenario, stage: Stage, prompts: PromptSource, run_s: float
) -> list[Ask]:
    """Return as many requests as plain decoding answers in `run_s`.

    They fill every place at least twice. The measured time ends with the first place that stays
    empty (`loop.rate_at_full_places`).
    """
    least = asks_of(scenario, prompts, 2 * scenario.batch)
    plain = partial(stage.serve, batch=scenario.batch, k=0, learnt=Learnt())
    plain(least)  # makes what is made at a first pass
    run = plain(least)
    took_s = sum(ask.num_tokens for ask in least) / run.tokens_per_s
    return asks_of(scenario, prompts, len(least) * max(1, math.ceil(run_s / took_s)))
