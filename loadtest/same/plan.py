"""Questions, each of which must get one text, and the ways in which each is asked.

A question is a prompt with a temperature, a seed and a route. A way is a side, a delivery, a number
of concurrent requests, and the run. A server that keeps its seeds and is lossless gives a question
the same text in every way.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from loadtest.client.http import CHAT, COMPLETIONS
from loadtest.client.prompt_file import Prompt

Body = dict[str, Any]
SideName = Literal["A", "B"]
Route = Literal["chat", "completions"]
Delivery = Literal["stream", "whole"]

ROUTES: Mapping[Route, str] = {"chat": CHAT, "completions": COMPLETIONS}
DELIVERIES: tuple[Delivery, ...] = ("stream", "whole")
_SEEDS = 1 << 31  # below it every server takes a seed


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """One request as far as its text may depend on it. `prompt_at` counts in the prompt file."""

    prompt_at: int
    temperature: float
    seed: int
    route: Route


@dataclass(frozen=True, slots=True, kw_only=True)
class Way:
    """A way to ask: the side, the delivery, the number of requests at a time, the run (from 1)."""

    side: SideName
    delivery: Delivery
    concurrency: int
    run: int


@dataclass(frozen=True, kw_only=True)
class Plan:
    """All that is asked.

    Attributes:
        prompts: of the file, or the chosen part of it.
        temperatures: each prompt is asked with every one of them.
        num_seeds: of each prompt at each temperature; at 0 one is enough.
        base_seed: which those seeds and the order of requests are drawn from.
        max_tokens: of an answer.
        sides, routes, deliveries, concurrencies: how all is asked.
        num_runs: how often; the second run is what a server differs from itself by.
    """

    prompts: Sequence[Prompt]
    temperatures: Sequence[float]
    num_seeds: int
    base_seed: int
    max_tokens: int
    sides: Sequence[SideName]
    routes: Sequence[Route]
    deliveries: Sequence[Delivery]
    concurrencies: Sequence[int]
    num_runs: int

    def questions(self) -> list[Question]:
        """Return all questions, those of a prompt one after another.

        Chats are left out of the route for plain completions, which cannot hold them.
        """
        return [
            Question(prompt_at=at, temperature=temperature, seed=seed, route=route)
            for at, prompt in enumerate(self.prompts)
            for route in self.routes
            if route == "chat" or prompt.text is not None
            for temperature in self.temperatures
            for seed in self._seeds(prompt, temperature)
        ]

    def ways(self) -> list[Way]:
        """Return all ways, sides by turns, so that both meet the machine in the same state."""
        return [
            Way(side=side, delivery=delivery, concurrency=concurrency, run=run)
            for run in range(1, self.num_runs + 1)
            for concurrency in self.concurrencies
            for delivery in self.deliveries
            for side in self.sides
        ]

    def body(self, question: Question, delivery: Delivery, model: str) -> Body:
        """Return the JSON to post, without what a side adds."""
        prompt = self.prompts[question.prompt_at]
        is_chat = question.route == "chat"
        wants_usage = {"stream_options": {"include_usage": True}} if delivery == "stream" else {}
        return {
            "model": model,
            **(prompt.chat_fields() if is_chat else prompt.completion_fields()),
            "temperature": question.temperature,
            "seed": question.seed,
            "max_tokens": self.max_tokens,
            "stream": delivery == "stream",
            **wants_usage,
        }

    def in_order_of(self, way: Way, questions: Sequence[Question]) -> list[Question]:
        """Return the questions in another order for each run, so that neighbours change."""
        shuffled = list(questions)
        random.Random(f"{self.base_seed}-{way.run}").shuffle(shuffled)
        return shuffled

    def _seeds(self, prompt: Prompt, temperature: float) -> Iterator[int]:
        for number in range(self.num_seeds if temperature > 0 else 1):
            yield random.Random(f"{self.base_seed}-{prompt.name}-{number}").randrange(_SEEDS)


def merged(body: Mapping[str, Any], fields: Mapping[str, Any]) -> Body:
    """Return a body with further fields in place of its own; those that are None are left out."""
    both = {**body, **fields}
    return {name: value for name, value in both.items() if value is not None}
