"""The scenarios by name: one axis varied at a time around a middle, and corners of the whole.

Axes: pair, batch, temperature, length of the output, what is asked for, and how the parts are
connected. Names say how a scenario differs from the middle: `demo-b8-t1.3-link` has batch 8,
temperature 1.3 and parts in processes of their own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Literal

Where = Literal["engine", "link", "http"]

# What is asked for: a kind of prompt all along; `turning`: code first, then orders, which a draft
# guesses worse; `mixed`: several kinds at once, at several temperatures and lengths.
Kind = Literal["story", "code", "extraction", "turning", "mixed"]

DEMO, SMOLLM2, LARGE = "demo", "smollm2", "349m-18m"
_MIDDLE_TOKENS = 64


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


def _demo() -> list[Scenario]:
    sweep = [Scenario(pair=DEMO, batch=batch) for batch in (1, 4, 8, 16)]
    sweep += [Scenario(pair=DEMO, temperature=heat) for heat in (0.7, 1.3)]
    sweep += [Scenario(pair=DEMO, num_tokens=length) for length in (8, 200)]
    sweep += [Scenario(pair=DEMO, kind=kind) for kind in ("code", "extraction", "turning")]
    corners = [
        Scenario(pair=DEMO, batch=1, temperature=1.3, num_tokens=8),
        Scenario(pair=DEMO, batch=1, num_tokens=200, kind="code"),
        Scenario(pair=DEMO, batch=16, temperature=1.3, num_tokens=8),
        Scenario(pair=DEMO, batch=16, num_tokens=200, kind="turning"),
        Scenario(pair=DEMO, batch=8, kind="mixed"),
    ]
    apart = [
        Scenario(pair=DEMO, where=where, batch=batch)
        for where in ("link", "http")
        for batch in (1, 4, 8)
    ]
    apart += [
        Scenario(pair=DEMO, where="http", kind="code"),
        Scenario(pair=DEMO, where="http", kind="extraction"),
        Scenario(pair=DEMO, where="http", batch=8, kind="mixed"),
    ]
    return [*sweep, *corners, *apart]


CATALOG: tuple[Scenario, ...] = tuple(_demo())
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
