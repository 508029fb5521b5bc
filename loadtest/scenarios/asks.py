"""The requests of a scenario: the same for every line and every turn."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

from loadtest.bench.loop import Ask
from loadtest.scenarios.catalog import Scenario

# Token ids of so many prompts of a kind; the kinds are "story", "code" and "extraction".
PromptSource = Callable[[str, int], Sequence[Sequence[int]]]

_TURNING = ("code", "extraction")
# Mixed traffic: kind, temperature, length as a share of the scenario's.
_MIXED = (
    ("extraction", 0.0, 0.75),
    ("story", 1.3, 1.5),
    ("code", 0.0, 0.5),
    ("story", 0.7, 1.25),
    ("extraction", 0.7, 0.5),
    ("code", 0.7, 1.0),
    ("story", 0.0, 1.5),
)
_STAGGER_S = 0.03  # between the arrivals that fill the places; later ones come as places are free
_SEED = 7


def asks_of(scenario: Scenario, prompts: PromptSource, count: int) -> list[Ask]:
    """Return the requests of a run.

    Args:
        scenario: what is to be asked.
        prompts: of its pair.
        count: how many requests.
    """
    if scenario.kind == "mixed":
        return _mixed(scenario, prompts, count)
    if scenario.kind == "turning":
        first, then = _TURNING
        half = count // 2
        drawn = [*prompts(first, half), *prompts(then, count - half)]
    else:
        drawn = [*prompts(scenario.kind, count)]
    return [
        Ask(
            prompt=prompt,
            num_tokens=scenario.num_tokens,
            temperature=scenario.temperature,
            seed=index,
        )
        for index, prompt in enumerate(drawn)
    ]


def _mixed(scenario: Scenario, prompts: PromptSource, count: int) -> list[Ask]:
    """Kinds in a random order that is the same for the same count; arrivals one after another."""
    shares = [_MIXED[index % len(_MIXED)] for index in range(count)]
    random.Random(_SEED).shuffle(shares)
    left = {
        kind: list(prompts(kind, sum(1 for each, _, _ in shares if each == kind)))
        for kind in {kind for kind, _, _ in shares}
    }
    return [
        Ask(
            prompt=left[kind].pop(),
            num_tokens=max(1, round(share * scenario.num_tokens)),
            temperature=temperature,
            seed=index,
            pause_s=_STAGGER_S * index if index < scenario.batch else 0.0,
        )
        for index, (kind, temperature, share) in enumerate(shares)
    ]
