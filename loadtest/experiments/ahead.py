"""Drafts ahead: the draft model works while the target verifies, on a core each, and simulated.

`two cores` has draft and target in one process with both cores each. One works after the other, so
it is the same hardware without overlap.

Simulated passes have the times of a cost model. The engines, routers and planners are those that
serve (`loadtest.fuzz.failures.timed`). Models have 16 bits. 70B on four H100 makes 54.7 tokens a
second without drafts (2603.03251), so a pass takes 18.3 ms. A step of 1B takes a tenth of that and
more, for launches. 8B on one H100 reads 16 GB at 3.35 TB/s, and a third stands around that. A step
of 0.5B is mostly launches. A row costs its products at half the peak.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from itertools import count

from loadtest.frame.claims import Goal
from loadtest.frame.experiment import Experiment, Lines, Terms, Turn
from loadtest.frame.runs import MEASURES, Ask
from loadtest.frame.ways import ADAPTIVE, PLAIN, Way, name_of
from loadtest.frame.workloads import demo
from loadtest.fuzz.failures.model import VOCAB_SIZE
from loadtest.fuzz.failures.timed import Costs, TimedPair, TimedStage, timed_stage

_BRANCHES = 9  # at most: hits are claimed for so many
_LENGTHS = (3, 5, None)
_BATCHES = (1, 4, 8, 16)


def _ahead(k: int | None) -> Way:
    return Way(k=k, speculation={"draft_ahead": _BRANCHES})


def _of_pair(pair: str, *batches: int) -> Experiment:
    return Experiment(
        question=f"what do drafts ahead bring beside drafts in turn: {pair}",
        workloads={
            f"story T={temperature:g}": demo("story", temperature=temperature)
            for temperature in (0.0, 1.0)
        },
        ways={
            PLAIN: Way(k=0),
            "two cores k=0": Way(k=0, at="engine"),
            "two cores adaptive": Way(at="engine"),
            **{name_of(k): Way(k=k) for k in _LENGTHS},
            **{f"ahead {name_of(k)}": _ahead(k) for k in _LENGTHS},
        },
        stages=("link",),
        batches=batches,
        measures=(
            "tokens_per_s",
            "tokens_per_round",
            "token_acceptance",
            "mean_k",
            "ahead_share",
            "ahead_tokens",
            *(f"ahead_after_{place}" for place in range(6)),
            *("draft_ms", "verify_ms", "link_ms"),
        ),
        goals=(
            Goal(way=f"ahead {ADAPTIVE}", to=ADAPTIVE, at_least=1.4, only={"batch": 1}),
            Goal(way=f"ahead {ADAPTIVE}", to=ADAPTIVE, at_least=0.98),
            Goal(way=f"ahead {ADAPTIVE}", to="two cores *", by="ratio to best", at_least=1.0),
        ),
        pair=pair,
        engine={"max_model_len": 1024, "num_threads": 2},
        repeats=3,
        warm_s=5.0,
    )


# Acceptance of 0.7, 0.8 and 0.9, and a draft step of 15 to 20% of a pass.
AHEAD: Mapping[str, Experiment] = {
    f"ahead-{pair}": _of_pair(pair, *batches)
    for pair, batches in (("a70-c15", (1,)), ("a80-c15", _BATCHES), ("a90-c15", (1,)))
}

_SIMULATED_LENGTHS = (5, None)
_PROMPT_TOKENS = 8
_COSTS = {
    "70B + 1B": (Costs(pass_s=0.0183, row_s=7.1e-5), Costs(pass_s=0.0022, row_s=1e-5)),
    "8B + 0.5B": (Costs(pass_s=0.0066, row_s=3.2e-5), Costs(pass_s=0.0014, row_s=8e-6)),
}
_NOISE = {0.7: 1.0, 0.8: 0.6, 0.9: 0.3}  # by about the share of tokens that are accepted
_SIMULATED_BATCHES = (1, 4, 16, 32)
_MEASURES = (
    *("tokens_per_s", "tokens_per_round", "token_acceptance", "mean_k", "ahead_share"),
    "ahead_tokens",
    *(f"ahead_after_{place}" for place in range(6)),
)


def simulated(pair: TimedPair, temperature: float) -> Lines:
    """Return lines of requests that a simulated pair answers."""

    @contextmanager
    def lines(terms: Terms, ways: Mapping[str, Way]) -> Iterator[Mapping[str, Turn]]:
        with timed_stage(pair) as stage:
            yield {name: _turns(stage, terms, way, temperature) for name, way in ways.items()}

    return lines


def _turns(stage: TimedStage, terms: Terms, way: Way, temperature: float) -> Turn:
    numbers = count()

    def turn() -> Mapping[str, float]:
        dice = random.Random(next(numbers))
        asks = [
            Ask(
                prompt_ids=tuple(dice.randrange(1, VOCAB_SIZE) for _ in range(_PROMPT_TOKENS)),
                max_tokens=terms.tokens,
                temperature=temperature,
                seed=dice.randrange(1 << 32),
            )
            for _ in range(terms.count)
        ]
        num_rows = stage.num_draft_rows
        run = stage.run(asks, way, terms.batch)
        found = {name: MEASURES[name](run) for name in _MEASURES}
        return found | {"draft_rows_per_token": (stage.num_draft_rows - num_rows) / run.num_tokens}

    return turn


def _name(label: str, acceptance: float, temperature: float) -> str:
    return f"{label}, a = {acceptance:g}, T = {temperature:g}"


AHEAD_SIMULATED = Experiment(
    question="what would drafts ahead bring where each model has a device of its own (simulated)",
    ways={
        "k=0": Way(k=0),
        **{name_of(k): Way(k=k) for k in _SIMULATED_LENGTHS},
        **{f"ahead {name_of(k)}": _ahead(k) for k in _SIMULATED_LENGTHS},
    },
    lines={
        _name(label, acceptance, temperature): simulated(
            TimedPair(target=target, draft=draft, noise=noise), temperature
        )
        for label, (target, draft) in _COSTS.items()
        for acceptance, noise in _NOISE.items()
        for temperature in (0.0, 1.0)
    },
    cells=tuple(
        ("simulated", _name(label, acceptance, temperature), batch)
        for label in _COSTS
        for acceptance in _NOISE
        for temperature in (0.0, 1.0)
        for batch in (_SIMULATED_BATCHES if (acceptance, temperature) == (0.8, 1.0) else (1,))
    ),
    measures=(*_MEASURES, "draft_rows_per_token"),
    goals=(
        Goal(way=f"ahead {ADAPTIVE}", to=ADAPTIVE, at_least=1.4, only={"batch": 1}),
        Goal(way=f"ahead {ADAPTIVE}", to=ADAPTIVE, at_least=0.98),
        Goal(way="ahead k=5", measure="ahead_share", at_least=0.9, only={"batch": 1}),
    ),
    tokens=48,
    count=8,
    repeats=3,
)
