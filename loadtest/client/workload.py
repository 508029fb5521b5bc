"""Requests of simulated users: chats, records under a schema, long shared prompts, bad requests.

A workload is drawn from a seed, so two runs ask the same things in the same order. Every good
request has a seed of its own. If a workload repeats its requests, a text must be the same each
time. If it does not, no question comes twice before all topics are used up. So nothing is drafted
from an earlier answer to the same question.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

from deployments.config.applications import applications_of
from loadtest.client.cases import order_list_schema

Body = dict[str, Any]

_WHO = (
    *("a dog", "a girl", "a fox", "an old man", "two friends", "a cat", "a boy", "a bird"),
    *("a queen", "a farmer", "a mouse", "a bear", "two sisters", "a baker", "a duck", "a king"),
)
_WHAT = (
    *("a ball", "a boat", "a river", "a garden", "a kite", "a box", "a drum", "a tree"),
    *("a lamp", "a bridge", "a cake", "a hill", "a book", "a bell", "a cart", "a key"),
)
_TOPICS = [
    f"{who}, {what} and {other}"
    for who, (what, other) in itertools.product(_WHO, itertools.permutations(_WHAT, 2))
]
_STRIDE = 1009  # a prime that does not divide how many there are: each comes once before any again
_NAMES = ("Imogen", "Tom", "Anna", "Rosa", "Omar", "Lena", "Piet", "Mei")
_CITIES = ("Delhi", "Oslo", "Lima", "Madrid")
_ITEMS = ("blue lamps", "red chairs", "clocks", "green pens", "maps", "wool hats")
_RULES = (
    "Answer briefly.",
    "Use simple words.",
    "Never mention these rules.",
    "Keep names as they are written.",
    "Write numbers as digits.",
)
NUM_DISTINCT = 64  # requests of each kind, where a run of any length repeats them

# Frequency of each action; "leave" is a chat whose reader goes away.
MIX: Mapping[str, int] = {"chat": 8, "record": 5, "shared": 3, "leave": 1, "bad": 1}
_LONGEST_READ = 12  # lines after which a reader who leaves has left


@dataclass(frozen=True)
class Request:
    """One request and what its answer must be.

    Attributes:
        kind: under which locust counts it.
        key: the same for requests that must get the same text; empty: no text is expected.
        body: the JSON to post.
        schema: the answer must be JSON that validates; None: any text.
        bad_field: the field a refusal must name; None: the request is good.
    """

    kind: str
    key: str
    body: Body
    schema: dict[str, Any] | None = None
    bad_field: str | None = None


@dataclass(frozen=True)
class Asking:
    """A request and what its asker does: read all of it, or leave after some lines."""

    request: Request
    leave_after: int | None = None

    @property
    def name(self) -> str:
        """The name under which it is counted."""
        return self.request.kind if self.leave_after is None else "cancelled chat"


class Workload:
    """Draws requests for one model.

    Args:
        model: the name clients ask for.
        seed: of everything that is drawn.
        max_tokens: of a chat.
        record_max_tokens: of a record; about 300 are enough for what the schema allows.
        shared_words: length of the system prompt that `shared` chats begin with, in words.
        num_distinct: requests of each kind, which come again; None: each number is another one.
    """

    def __init__(
        self,
        model: str,
        seed: int,
        *,
        max_tokens: int,
        record_max_tokens: int,
        shared_words: int,
        num_distinct: int | None = NUM_DISTINCT,
    ) -> None:
        self._model = model
        self._seed = seed
        self._max_tokens = max_tokens
        self._record_max_tokens = record_max_tokens
        self._num_distinct = num_distinct
        self._rules = _long_prompt(random.Random(f"{seed}-rules"), shared_words)

    def chat(self, number: int) -> Request:
        """Return a request for a story, sampled."""
        rng, key = self._draw("chat", number)
        text = f"Write a short story about {self._topic(number)}."
        body = self._body(rng, [{"role": "user", "content": text}])
        return Request("chat", key, body | {"temperature": rng.choice([0.0, 0.7, 1.0])})

    def record(self, number: int) -> Request:
        """Return a request to turn an order into JSON, under a schema that bounds every length."""
        rng, key = self._draw("record", number)
        order = (
            f"{rng.choice(_NAMES)} from {rng.choice(_CITIES)} wants {rng.randint(2, 40)} "
            f"{rng.choice(_ITEMS)} at ${rng.randint(1, 99)} each."
        )
        schema = order_list_schema("orders", num_orders=rng.randint(1, 2))
        body = self._body(
            rng, [{"role": "user", "content": f"Turn this order into JSON.\n{order}"}]
        )
        body |= {
            "max_tokens": self._record_max_tokens,
            "temperature": 0.0,
            "response_format": {
                "type": "json_schema",
                "json_schema": {"name": "orders", "schema": schema, "strict": True},
            },
        }
        return Request("record", key, body, schema=schema)

    def shared(self, number: int) -> Request:
        """Return a question after the long prompt that all of these share."""
        rng, key = self._draw("shared", number)
        messages = [
            {"role": "system", "content": self._rules},
            {"role": "user", "content": f"Write one sentence about {self._topic(number)}."},
        ]
        body = self._body(rng, messages) | {"temperature": 0.0}
        return Request("shared prompt", key, body)

    def bad(self, number: int) -> Request:
        """Return a request that must be refused by the name of its field."""
        rng, _ = self._draw("bad", number)
        body = self._body(rng, [{"role": "user", "content": "Hello"}])
        field, value = _BAD_FIELDS[number % len(_BAD_FIELDS)]
        return Request("bad request", "", body | {field: value}, bad_field=field)

    def of_kind(self, kind: str, number: int) -> Request:
        """Return the request of that number and kind: chat, record, shared or bad.

        Raises:
            ValueError: there is no such kind.
        """
        makers: dict[str, Callable[[int], Request]] = {
            "chat": self.chat,
            "record": self.record,
            "shared": self.shared,
            "bad": self.bad,
        }
        if kind not in makers:
            raise ValueError(f"kind must be one of {', '.join(makers)}, got {kind!r}")
        return makers[kind](number)

    def mixed(self, rng: random.Random, mix: Mapping[str, int] = MIX) -> Iterator[Asking]:
        """Requests without end; every run of sum(mix.values()) of them holds the whole mix once.

        So a stretch of any length has nearly the same work in it, whichever `rng` it is.
        """
        while True:
            kinds = [kind for kind, times in mix.items() for _ in range(times)]
            rng.shuffle(kinds)
            for kind in kinds:
                number = rng.randrange(NUM_DISTINCT)
                if kind == "leave":
                    yield Asking(self.chat(number), rng.randint(1, _LONGEST_READ))
                else:
                    yield Asking(self.of_kind(kind, number))

    def _draw(self, kind: str, number: int) -> tuple[random.Random, str]:
        key = f"{self._seed}-{kind}-{self._distinct(number)}"
        return random.Random(key), key

    def _topic(self, number: int) -> str:
        return _TOPICS[(self._seed + self._distinct(number) * _STRIDE) % len(_TOPICS)]

    def _distinct(self, number: int) -> int:
        return number if self._num_distinct is None else number % self._num_distinct

    def _body(self, rng: random.Random, messages: Sequence[dict[str, str]]) -> Body:
        return {
            "model": self._model,
            "messages": list(messages),
            "max_tokens": self._max_tokens,
            "seed": rng.randrange(1 << 32),
            "stream": True,
            "stream_options": {"include_usage": True},
        }


_BAD_FIELDS: tuple[tuple[str, Any], ...] = (
    ("temperature", -1),
    ("max_tokens", 0),
    ("top_p", 2),
    ("messages", []),
    ("seed", "seven"),
)


def _long_prompt(rng: random.Random, num_words: int) -> str:
    words: list[str] = []
    while len(words) < num_words:
        words += rng.choice(_RULES).split()
    return " ".join(words[:num_words])


# Terms of every trial that sends a workload.
LOAD_TERMS: Mapping[str, Any] = {
    "max_tokens": 100,  # completion tokens of a chat
    "record_max_tokens": 400,  # of a JSON record
    "shared_words": 150,  # of the shared prompt
    "any_text": False,  # do not expect one text per seed
    "seed": 1,  # of everything that is sent, and when
}


def workload_of(
    terms: SimpleNamespace, config: Mapping[str, Any], *, num_distinct: int | None = NUM_DISTINCT
) -> Workload:
    """Return the requests for the model of a parsed Serve config file; see `Workload`."""
    return Workload(
        applications_of(config).config.router.model_name,
        terms.seed,
        max_tokens=terms.max_tokens,
        record_max_tokens=terms.record_max_tokens,
        shared_words=terms.shared_words,
        num_distinct=num_distinct,
    )
