"""The parts of the hour, in the order in which they are worth most."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from loadtest.gpu_day import draws, machine, passes, served, suite
from loadtest.gpu_day.terms import Terms


@dataclass(frozen=True)
class Part:
    """One question to the machine.

    Attributes:
        question: what it answers.
        run: gives the answer, ready for JSON.
        limit_s: after which it is ended.
        num_cards: that it needs.
        package: that it needs; empty: none.
    """

    question: str
    run: Callable[[Terms], dict[str, Any]]
    limit_s: float
    num_cards: int = 1
    package: str = ""


PARTS: Mapping[str, Part] = {
    "cards": Part("which cards are here, and how fast is their memory", machine.cards, 120.0),
    "engine": Part("which kernel, pages and graphs does a target get", passes.engine, 600.0),
    "passes": Part("how far from reading the weights once is a pass", passes.passes, 900.0),
    "launches": Part("what does a pass launch, is the device kept busy", passes.launches, 600.0),
    "draws": Part("what does sampling cost by its terms", draws.draws, 300.0),
    "tests": Part("do the tests pass that need a GPU", suite.suite, 900.0),
    "one-card": Part("what do drafts bring on one card", served.one_card, 900.0),
    "two-cards": Part("what do drafts bring with a card for each", served.two_cards, 900.0, 2),
    "vllm": Part("how far is our loop around vLLM from vLLM", served.vllm, 900.0, package="vllm"),
    "ranks": Part("do drafts leave the text of two ranks unchanged", served.ranks, 600.0, 2),
}
