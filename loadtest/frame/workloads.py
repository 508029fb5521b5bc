"""Workloads: makers of the same requests for every way of a turn.

Prompts are held-out chats of the demo, the project's prompts for real models (`kinds.json`), or
those of a user's file.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import lru_cache
from itertools import cycle, islice
from pathlib import Path

from loadtest.frame.experiment import Terms, Workload
from loadtest.frame.prompts import Prompt, load_prompts, read_kinds
from loadtest.frame.runs import Ask
from loadtest.report.prompts import demo_prompts
from models.text.tokenizer import Tokenizer

# Token ids of so many prompts of a kind, for the models of the terms.
Source = Callable[[Terms, str, int], Sequence[Sequence[int]]]

# The demo's kinds among the project's prompts for real models.
_REAL_KINDS = {"story": "writing", "code": "coding", "extraction": "extraction"}
# Mixed traffic: kind, temperature, length as a share of the experiment's.
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


@lru_cache(maxsize=4)
def tokenizer_of(folder: Path) -> Tokenizer:
    """Return the tokenizer of a checkpoint."""
    return Tokenizer.load(folder)


def demo(kind: str, *, temperature: float = 0.0, first: int = 0) -> Workload:
    """Return exact lengths of a kind of the demo's held-out texts, from prompt `first` on."""

    def asks(terms: Terms) -> Sequence[Ask]:
        found = _exact(demo_prompts(first + terms.count, kind=kind)[first:], terms)
        return [replace(ask, temperature=temperature) for ask in found]

    return asks


def demo_kind(terms: Terms, kind: str, count: int) -> Sequence[Sequence[int]]:
    """Return prompts of a kind of the demo's held-out texts."""
    return demo_prompts(count, kind=kind)


def real_kind(terms: Terms, kind: str, count: int) -> Sequence[Sequence[int]]:
    """Return the project's prompts for real models, again from the first when they are too few."""
    tokenizer = tokenizer_of(terms.models.target)
    return [
        tokenizer.encode_chat([{"role": "user", "content": text}])
        for text in islice(cycle(read_kinds()[_REAL_KINDS[kind]]), count)
    ]


def exact(kind: str, prompts: Source = demo_kind) -> Workload:
    """Return exact lengths of one kind."""

    def asks(terms: Terms) -> Sequence[Ask]:
        return _exact(prompts(terms, kind, terms.count), terms)

    return asks


def turning(first: str, then: str, prompts: Source = demo_kind) -> Workload:
    """Return a half of one kind, then a half of another, which the draft may guess worse."""

    def asks(terms: Terms) -> Sequence[Ask]:
        half = terms.count // 2
        drawn = [*prompts(terms, first, half), *prompts(terms, then, terms.count - half)]
        return _exact(drawn, terms)

    return asks


def _exact(prompts: Sequence[Sequence[int]], terms: Terms) -> list[Ask]:
    return apart(
        [
            Ask(prompt_ids=tuple(prompt), max_tokens=terms.tokens, seed=index)
            for index, prompt in enumerate(prompts)
        ]
    )


def apart(asks: Sequence[Ask]) -> list[Ask]:
    """Return the requests, with a group of its own for each time that a prompt comes again.

    Otherwise its answer would be drafted from the memory of answers, and its prefix be cached.
    """
    seen: Counter[tuple[int, ...]] = Counter()
    found = []
    for ask in asks:
        lap = seen[ask.prompt_ids]
        seen[ask.prompt_ids] += 1
        found.append(replace(ask, group=f"{ask.group}{lap}") if lap else ask)
    return found


def mixed(prompts: Source = demo_kind) -> Workload:
    """Return kinds, temperatures and lengths in a random order; arrivals one after another."""

    def asks(terms: Terms) -> Sequence[Ask]:
        shares = [_MIXED[index % len(_MIXED)] for index in range(terms.count)]
        random.Random(7).shuffle(shares)
        kinds = [kind for kind, _, _ in shares]
        left = {kind: list(prompts(terms, kind, kinds.count(kind))) for kind in set(kinds)}
        return apart(
            [
                Ask(
                    prompt_ids=tuple(left[kind].pop()),
                    max_tokens=max(1, round(share * terms.tokens)),
                    temperature=temperature,
                    seed=index,
                    pause_s=_STAGGER_S * index if index < terms.batch else 0.0,
                )
                for index, (kind, temperature, share) in enumerate(shares)
            ]
        )

    return asks


def varied(
    workload: Workload, *, tokens: int | None = None, temperature: float | None = None
) -> Workload:
    """Return a workload whose answers have another length, or another temperature."""

    def asks(terms: Terms) -> Sequence[Ask]:
        found = workload(terms if tokens is None else replace(terms, tokens=tokens))
        return (
            found
            if temperature is None
            else [replace(ask, temperature=temperature) for ask in found]
        )

    return asks


def chats(prompts: Sequence[Prompt]) -> Workload:
    """Return the prompts one after another, from the first again when they are too few."""

    def asks(terms: Terms) -> Sequence[Ask]:
        tokenizer = tokenizer_of(terms.models.target)
        return apart(
            [
                Ask(
                    prompt_ids=prompt.encode(tokenizer),
                    max_tokens=terms.tokens,
                    seed=index,
                    eos_ids=tuple(tokenizer.eos_ids),
                    schema=prompt.schema,
                )
                for index, prompt in enumerate(islice(cycle(prompts), terms.count))
            ]
        )

    return asks


def by_task(name: str, num_prompts: int) -> dict[str, Workload]:
    """Return a workload for each task of a file of prompts or of a set (`prompts.load_prompts`).

    Raises:
        ValueError: the file is missing, empty or wrong; the message names line, field and value.
    """
    prompts = load_prompts(name, num_prompts, seed=0)
    tasks: dict[str, list[Prompt]] = {}
    for prompt in prompts:
        tasks.setdefault(prompt.task, []).append(prompt)
    return {task: chats(of_task) for task, of_task in tasks.items()}
