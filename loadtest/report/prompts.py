"""Prompts for the demo pair: chats of every kind it was trained on, from the held-out side."""

from __future__ import annotations

import random
from collections.abc import Iterator
from itertools import islice

from loadtest.report.machine import ROOT
from models.demo.data.mixture import Mixture
from models.text.tokenizer import Tokenizer

Message = dict[str, str]
_DEMO = ROOT / "models" / "demo" / "target"


def held_out_chats(rng: random.Random, kind: str | None) -> Iterator[list[Message]]:
    """Yield the messages of chats up to their last reply, without end.

    Args:
        rng: draws them.
        kind: one of `models.demo.data.mixture.KINDS`; None draws kinds by their share in training.
    """
    mixture = Mixture.load(None, held_out=True)
    while True:
        turns = mixture.draw(rng, kind).turns[:-1]
        if turns:  # else a story without a request
            yield [{"role": role, "content": content} for role, content in turns]


def demo_prompts(num_prompts: int, seed: int = 7, kind: str | None = None) -> list[list[int]]:
    """Token ids of `num_prompts` chat prompts, the same for the same seed; see `held_out_chats`."""
    tokenizer = Tokenizer.load(_DEMO)
    chats = held_out_chats(random.Random(seed), kind)
    return [tokenizer.encode_chat(messages) for messages in islice(chats, num_prompts)]
