"""The scenarios by name: one axis varied at a time around a middle, and corners of the whole.

Axes: pair, batch, temperature, length of the output, what is asked for, and how the parts are
connected. Names tell the difference from the middle scenario. `demo-b8-t1.3-link` has batch 8,
temperature 1.3 and parts in processes of their own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Literal

Where = Literal["engine", "link", "http"]

# The prompts: one kind all along; `turning`: acceptance falls after half of the requests (code,
# then orders, which a draft guesses worse; for grown pairs a draft with more noise comes in);
# `mixed`: several kinds at once, at several temperatures and lengths.
Kind = Literal["story", "code", "extraction", "turning", "mixed"]

DEMO, SMOLLM2, LARGE = "demo", "smollm2", "349m-18m"
_MIDDLE_TOKENS = 64


@dataclass(frozen=True)
class Grown:
    """A grown pair: greedy agreement, and a draft's pass in percent of its target's."""

    acceptance: float
    cost_percent: int

    @property
    def name(self) -> str:
        """The name of its folder in the cache and of its scenarios."""
        return f"a{100 * self.acceptance:.0f}-c{self.cost_percent}"


_MIDDLE = Grown(0.8, 5)
_SWEEPS = (
    *(Grown(acceptance, _MIDDLE.cost_percent) for acceptance in (0.3, 0.6, 0.8, 0.95)),
    *(Grown(_MIDDLE.acceptance, percent) for percent in (1, 15, 40)),
)
_CORNERS = (Grown(0.3, 40), Grown(0.95, 1))
GROWN = {grown.name: grown for grown in (*_SWEEPS, *_CORNERS)}
# A pair whose draft makes way for another of the same size: from which grown pair to which.
TURNING = {"a95to30-c5": (Grown(0.95, 5).name, Grown(0.3, 5).name)}


@dataclass(frozen=True, kw_only=True)
class Scenario:
    """One point of the axes; `num_tokens` of each output (mixed: about as many)."""

    pair: str
    where: Where = "engine"
    batch: int = 4
    temperature: float = 0.0
    num_tokens: int = _MIDDLE_TOKENS
    kind: Kind = "story"

    @property
    def name(self) -> str:
        """Its name: the pair, the batch and what is not as in the middle."""
        parts = [self.pair, f"b{self.batch}"]
        if self.kind != "story":
            parts.append(self.kind)
        if self.temperature:
            parts.append(f"t{self.temperature:g}")
        if self.num_tokens != _MIDDLE_TOKENS:
            parts.append(f"n{self.num_tokens}")
        if self.where != "engine":
            parts.append(self.where)
        return "-".join(parts)


def _around(pair: str, batches: Sequence[int]) -> list[Scenario]:
    """Batch, temperature and length varied one at a time."""
    return [
        *(Scenario(pair=pair, batch=batch) for batch in batches),
        *(Scenario(pair=pair, temperature=heat) for heat in (0.7, 1.3)),
        *(Scenario(pair=pair, num_tokens=length) for length in (8, 200)),
    ]


def _demo() -> list[Scenario]:
    kinds: tuple[Kind, ...] = ("code", "extraction", "turning")
    return [
        *_around(DEMO, (1, 4, 8, 16)),
        *(Scenario(pair=DEMO, kind=kind) for kind in kinds),
        Scenario(pair=DEMO, batch=1, temperature=1.3, num_tokens=8),
        Scenario(pair=DEMO, batch=1, num_tokens=200, kind="code"),
        Scenario(pair=DEMO, batch=16, temperature=1.3, num_tokens=8),
        Scenario(pair=DEMO, batch=16, num_tokens=200, kind="turning"),
        Scenario(pair=DEMO, batch=8, kind="mixed"),
        *(Scenario(pair=DEMO, where="link", batch=batch) for batch in (1, 4, 8)),
        *(Scenario(pair=DEMO, where="http", batch=batch) for batch in (1, 4, 8)),
        Scenario(pair=DEMO, where="http", kind="code"),
        Scenario(pair=DEMO, where="http", kind="extraction"),
        Scenario(pair=DEMO, where="http", batch=8, kind="mixed"),
    ]


def _smollm2() -> list[Scenario]:
    return [
        *_around(SMOLLM2, (1, 4, 8, 16)),
        *(Scenario(pair=SMOLLM2, batch=batch, kind="extraction") for batch in (1, 4)),
        Scenario(pair=SMOLLM2, kind="turning"),
        Scenario(pair=SMOLLM2, kind="mixed"),
        *(Scenario(pair=SMOLLM2, where="http", batch=batch) for batch in (1, 4, 8)),
        *(
            Scenario(pair=SMOLLM2, where="http", batch=batch, kind="extraction")
            for batch in (1, 4, 8)
        ),
    ]


def _large() -> list[Scenario]:
    return [
        *_around(LARGE, (1, 4, 8, 16)),
        Scenario(pair=LARGE, kind="turning"),
        Scenario(pair=LARGE, kind="mixed"),
        *(Scenario(pair=LARGE, where="link", batch=batch) for batch in (1, 4)),
        *(Scenario(pair=LARGE, where="http", batch=batch) for batch in (1, 4)),
    ]


def _grown() -> list[Scenario]:
    return [
        *_around(_MIDDLE.name, (1, 4, 8, 16)),
        Scenario(pair=_MIDDLE.name, kind="mixed"),
        *(Scenario(pair=_MIDDLE.name, where="link", batch=batch) for batch in (1, 4)),
        *(Scenario(pair=grown.name) for grown in _SWEEPS if grown != _MIDDLE),
        *(Scenario(pair=grown.name, batch=batch) for grown in _CORNERS for batch in (1, 8)),
        *(Scenario(pair=name, kind="turning") for name in TURNING),
    ]


CATALOG: tuple[Scenario, ...] = (*_demo(), *_smollm2(), *_large(), *_grown())
QUICK = ("demo-b1", "demo-b4", "demo-b8")


def select(patterns: Sequence[str]) -> list[Scenario]:
    """Return the scenarios that match any of the patterns, in the order of the catalog.

    Args:
        patterns: names, or shell patterns such as `demo-*`.

    Raises:
        ValueError: a pattern matches none.
    """
    for pattern in patterns:
        if not any(fnmatchcase(scenario.name, pattern) for scenario in CATALOG):
            raise ValueError(f"no scenario matches {pattern!r}; --list names them")
    return [
        scenario
        for scenario in CATALOG
        if any(fnmatchcase(scenario.name, pattern) for pattern in patterns)
    ]
