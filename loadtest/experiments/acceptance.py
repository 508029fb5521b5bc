"""Experiments on acceptance: tokens of a round next to theory, by rule and by the draft's choice.

Each turn has prompts of its own, and an answer ends where the model ends it. `theory_tokens` is
computed from the same run's `token_acceptance` (`theory.py`). Speed matters to neither, so load on
the machine changes nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from loadtest.frame.expected import PLACES
from loadtest.frame.experiment import Experiment, Terms, Workload
from loadtest.frame.runs import Ask
from loadtest.frame.ways import Way
from loadtest.frame.workloads import demo, tokenizer_of
from models.protocol.rules import RULES

_KINDS = {"orders": "extraction", "code": "code", "stories": "story"}
_MEASURES = ("tokens_per_round", "theory_tokens", "token_acceptance")


def _texts(kind: str, temperature: float) -> Workload:
    def asks(terms: Terms) -> Sequence[Ask]:
        first = terms.turn * terms.count
        eos_ids = tuple(tokenizer_of(terms.models.target).eos_ids)
        return [
            replace(ask, eos_ids=eos_ids, seed=first + ask.seed)
            for ask in demo(kind, temperature=temperature, first=first)(terms)
        ]

    return asks


def _workloads(*temperatures: float) -> Mapping[str, Workload]:
    return {
        f"{name} T={temperature:g}": _texts(kind, temperature)
        for name, kind in _KINDS.items()
        for temperature in temperatures
    }


def _way(rule: str, k: int, **speculation: Any) -> Way:
    """Return a way by a rule; the text of a rule may depend on the draft."""
    texts = "" if RULES[rule].depends_on_draft else "all"
    return Way(k=k, speculation={"verification": rule, **speculation}, texts=texts)


ACCEPTANCE = Experiment(
    question="how many tokens does a round bring for each k and rule, next to theory",
    workloads=_workloads(1.0, 0.0),
    ways={f"{rule} k={k}": _way(rule, k) for rule in RULES for k in range(1, 9)},
    batches=(8,),
    measures=(*_MEASURES, *PLACES),
)

DRAFT_SAMPLING = Experiment(
    question="how many tokens are accepted of drafts that are sampled, and of greedy ones",
    workloads=_workloads(0.7, 1.0, 1.3),
    ways={
        f"{rule}, {method}": _way(rule, 4, draft_sample_method=method)
        for rule in RULES
        for method in ("probabilistic", "greedy")
    },
    batches=(8,),
    measures=_MEASURES,
    tokens=48,
    count=3,
)
