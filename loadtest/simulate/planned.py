"""An experiment on adaptive k in simulated time: the planner beside every fixed k.

`alone` has sessions that each decide for themselves, by the same measured costs. Shares are of the
best of k = 0 and every fixed k, which only hindsight knows.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from itertools import count

from loadtest.frame.claims import never_wrong
from loadtest.frame.experiment import Experiment, Lines, Terms, Turn
from loadtest.frame.ways import ADAPTIVE, Way, name_of
from loadtest.simulate.scenarios import FIXED_LENGTHS, Scenario, run, scenarios

_SECONDS = 20.0  # simulated, of each run
_POLICIES: Mapping[str, str | int] = {
    **{name_of(k): k for k in (0, *FIXED_LENGTHS)},
    "alone": "alone",
    ADAPTIVE: "joint",
}
_SCENARIOS = {(one.name, len(one.kinds)): one for one in scenarios()}


def _of(name: str) -> Lines:
    @contextmanager
    def lines(terms: Terms, ways: Mapping[str, Way]) -> Iterator[Mapping[str, Turn]]:
        scenario = _SCENARIOS[name, terms.batch]
        yield {way: _turns(scenario, _POLICIES[way]) for way in ways}

    return lines


def _turns(scenario: Scenario, policy: str | int) -> Turn:
    seeds = count()

    def turn() -> Mapping[str, float]:
        found = run(scenario, policy, seconds=_SECONDS, seed=next(seeds))
        return {
            "tokens_per_s": found.tokens_per_s,
            "mean_k": found.mean_k,
            "mean_batch": found.mean_batch,
            "predicted_share": found.predicted_share,
        }

    return turn


SIMULATED = Experiment(
    question="is adaptive k ever wrong, next to every fixed k and plain decoding (simulated)",
    ways={name: Way() for name in _POLICIES},
    lines={name: _of(name) for name, _ in _SCENARIOS},
    cells=tuple(("simulated", name, batch) for name, batch in _SCENARIOS),
    measures=("tokens_per_s",),
    goals=never_wrong(),
    repeats=2,
)
