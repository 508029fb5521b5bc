"""Do the turns of a chat find its prefix where targets are many, and what is that worth.

There are two services of a real model with two targets each. One of them has leases that are aware
of prefixes. A batch of chats runs at once. Each begins with a page of text and asks about it again
and again. Each run has a salt of its own, so that no run finds what another left.
"""

from __future__ import annotations

import asyncio
import itertools
import random
import statistics
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

from loadtest.client.answers import Answer
from loadtest.client.http import ask, open_client
from loadtest.frame.claims import Goal
from loadtest.frame.experiment import Experiment, Terms, Turn
from loadtest.frame.prompts import read_kinds
from loadtest.frame.ways import Way
from loadtest.report.machine import ROOT
from loadtest.service.served import POD_ENVIRONMENT, Config, measured, section

_CONFIG = ROOT / "configs" / "smollm2.yaml"
_MODEL = "smollm2-135m-instruct"
_NUM_TARGETS = 2
_PAGES = ("summaries", "context", "translation")  # kinds whose prompts have a text in them
_AWARE, _BALANCED = "prefix-aware", "balanced"
_SALTS = itertools.count(time.time_ns())


@contextmanager
def chats(terms: Terms, ways: Mapping[str, Way]) -> Iterator[Mapping[str, Turn]]:
    """Yield runs of chats on a service of each kind."""
    with ExitStack() as stack:
        yield {
            name: partial(
                _run_chats,
                stack.enter_context(
                    measured(
                        _CONFIG,
                        change=partial(_change, name == _AWARE),
                        environment=POD_ENVIRONMENT,
                    )
                ).base_url,
                terms,
            )
            for name in ways
        }


def _change(is_aware: bool, config: Config) -> None:
    section(config, "router")["prefix_aware_leases"] = is_aware
    [target] = [one for one in config["applications"][0]["deployments"] if one["name"] == "Target"]
    target["num_replicas"] = _NUM_TARGETS


def _run_chats(base_url: str, terms: Terms) -> Mapping[str, float]:
    """Run so many chats at once to their end.

    Raises:
        RuntimeError: an answer failed.
    """
    salt = str(next(_SALTS))

    async def run() -> list[list[Answer]]:
        async with open_client(base_url) as client:
            return await asyncio.gather(
                *(_chat(client, f"{salt} {n}", terms) for n in range(terms.batch))
            )

    later = [answer for turns in asyncio.run(run()) for answer in turns[1:]]
    cached, prompts = (
        sum(getattr(answer, name) for answer in later)
        for name in ("num_cached_tokens", "num_prompt_tokens")
    )
    waits = [1e3 * ((one.first_text_s or one.ended_s) - one.began_s) for one in later]
    return {
        "cached_share": cached / prompts,
        "first_ms": statistics.median(waits),
        "tokens_a_prompt": prompts / len(later),
    }


async def _chat(client: Any, seed: str, terms: Terms) -> list[Answer]:
    """Ask about one page of text as many times as a run has turns."""
    rng, kinds = random.Random(seed), read_kinds()
    page = [text for kind in _PAGES for text in kinds[kind]]
    rng.shuffle(page)
    num_turns = terms.count // terms.batch
    questions = rng.sample([text for texts in kinds.values() for text in texts], num_turns)
    messages: list[dict[str, str]] = []
    answers = []
    for number, question in enumerate(questions):
        start = "\n\n".join(page) + "\n\n" if number == 0 else ""
        messages.append({"role": "user", "content": start + question})
        answer = await ask(client, _body(messages, terms.tokens, seed))
        if answer.error:
            raise RuntimeError(answer.error)
        messages.append({"role": "assistant", "content": answer.text})
        answers.append(answer)
    return answers


def _body(messages: Sequence[Mapping[str, str]], num_tokens: int, salt: str) -> dict[str, Any]:
    return {
        "model": _MODEL,
        "messages": messages,
        "max_tokens": num_tokens,
        "temperature": 0,
        "cache_salt": salt.split()[0],
        "stream": True,
        "stream_options": {"include_usage": True},
    }


TURNS = Experiment(
    question="do a chat's turns find its prefix among two targets, and what is that worth",
    lines={"chats about a page": chats},
    ways={_BALANCED: Way(), _AWARE: Way()},
    stages=("http",),
    batches=(4,),
    measures=("first_ms", "cached_share", "tokens_a_prompt"),
    goals=(
        Goal(way=_AWARE, measure="cached_share", at_least=0.8),
        Goal(way=_AWARE, to=_BALANCED, measure="first_ms", at_most=0.8),
    ),
    pair="smollm2",
    tokens=24,
    count=5,  # turns of a chat
    repeats=6,
)
