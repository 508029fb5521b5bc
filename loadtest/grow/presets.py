"""Sizes of pairs by name, and the pairs of the scenarios: drafts of four costs, four acceptances.

Pairs named aNN-cNN have drafts that agree with the target on NN% of tokens and cost NN% of its
pass. All compute the function of the shipped draft, the smallest one that can be grown. So even a
draft that costs 1% of its target's pass is the same function before its noise.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from loadtest.grow.source import ModelSize

_DEMO = Path(__file__).parents[2] / "models" / "demo"
SHIPPED = _DEMO / "target"
SHARED_TARGET = "scenario-target"  # folder of the target of all aNN-cNN, beside them


@dataclass(frozen=True, kw_only=True)
class Preset:
    """The sizes that a pair is grown to.

    Attributes:
        target, draft: sizes.
        source: checkpoint that both are grown from.
        acceptance: greedy agreement, where nothing else is asked for.
        shares_target: the target is grown once and linked from each pair.
    """

    target: ModelSize
    draft: ModelSize
    source: Path = SHIPPED
    acceptance: float = 0.8
    shares_target: bool = False


def _size(layers: int, hidden: int, intermediate: int, heads: int) -> ModelSize:
    return ModelSize(
        num_hidden_layers=layers,
        hidden_size=hidden,
        intermediate_size=intermediate,
        num_attention_heads=heads,
        num_key_value_heads=heads,
    )


# By the cost of a draft step in percent of the target's pass. Measured on two cores at one row, in
# bfloat16: the target's pass takes 14 ms, a draft's 1.3, 4.6, 13 and 37% of it.
_DRAFTS = {
    1: _size(3, 128, 352, 4),  # the source itself
    5: _size(8, 256, 1024, 4),
    15: _size(10, 512, 1536, 8),
    40: _size(22, 512, 1536, 8),
}
# Acceptance at the middle cost, cost at the middle acceptance, and two corners; in percent.
_GROWN = (
    *((30, 5), (60, 5), (80, 5), (95, 5), (80, 1), (80, 15), (80, 40), (30, 40), (95, 1)),
    *((70, 15), (90, 15)),  # drafts ahead
)

# Few draft layers, as a draft's step is short only then; hidden sizes in powers of four, see
# `checkpoint.grow_checkpoint`.
PRESETS: Mapping[str, Preset] = {
    "349m-18m": Preset(target=_size(25, 1024, 3072, 16), draft=_size(8, 256, 2304, 4)),
    "67m-9m": Preset(target=_size(8, 1024, 1024, 16), draft=_size(8, 256, 704, 4)),
    **{
        f"a{acceptance}-c{cost}": Preset(
            target=_size(16, 1024, 3072, 8),
            draft=_DRAFTS[cost],
            source=_DEMO / "draft",
            acceptance=acceptance / 100,
            shares_target=True,
        )
        for acceptance, cost in _GROWN
    },
}
