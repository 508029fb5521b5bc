"""Prompts for the demo pair: chats of every kind it was trained on, from the held-out side."""

from __future__ import annotations

import random
from pathlib import Path

from models.demo.data.mixture import Mixture
from models.text.tokenizer import Tokenizer

_DEMO = Path(__file__).parents[2] / "models" / "demo" / "target"


def demo_prompts(num_prompts: int, seed: int = 7, kind: str | None = None) -> list[list[int]]:
    """Token ids of `num_prompts` chat prompts, the same for the same seed.

    `kind` is a key of `models.demo.data.mixture.SHARES`; None draws kinds by their share in
    training.
    """
    tokenizer = Tokenizer.load(_DEMO)
    mixture = Mixture.load(None, held_out=True)
    rng = random.Random(seed)
    prompts: list[list[int]] = []
    while len(prompts) < num_prompts:
        chat = mixture.draw(rng, kind)
        if chat.turns[0][0] != "text":
            messages = [{"role": role, "content": content} for role, content in chat.turns[:-1]]
            prompts.append(tokenizer.encode_chat(messages))
    return prompts
