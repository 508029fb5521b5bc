"""Texts that a model writes itself, greedily and sampled: where draft and target are compared.

Prompts are those of the demo pair's tests, from the held-out side. They use the checkpoint's own
tokens and chat template. Another model may answer them badly; it is still its own text, which is
what a draft has to guess. Agreement depends on the kind of prompt. If the next token is certain, as
in copying, a draft is right whatever noise it has.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from tqdm import tqdm
from transformers import GenerationConfig

from loadtest.report.prompts import held_out_chats
from models.distill.answers import written
from models.text.tokenizer import Tokenizer

_ROWS = 32  # prompts generated together


@dataclass(frozen=True, slots=True)
class Text:
    """A prompt and what the model wrote after it, end token included."""

    prompt: list[int]
    reply: list[int]
    is_sampled: bool  # at temperature 1; otherwise greedy


def draw_texts(
    model: Any, path: Path, num_texts: int, *, kind: str | None, num_tokens: int, seed: int
) -> list[Text]:
    """Replies of `model` to `num_texts` prompts, each greedily and sampled.

    Args:
        model: a causal language model of transformers.
        path: its checkpoint's directory, for the tokenizer.
        num_texts: prompts; twice as many texts come back.
        kind: of prompts, one of `models.demo.data.mixture.KINDS`; None draws them by their
        share. num_tokens: the most tokens of a reply. seed: of prompts and of sampling.

    Raises:
        ValueError: the checkpoint has no tokenizer, or its context is too short.
    """
    tokenizer = Tokenizer.load(path)
    longest = model.config.max_position_embeddings - num_tokens
    prompts = _prompts(tokenizer, num_texts, longest, kind, seed)
    # Its own defaults, penalties for one, would make another law.
    model.generation_config = GenerationConfig(eos_token_id=model.generation_config.eos_token_id)
    texts: list[Text] = []
    with torch.random.fork_rng(devices=()), tqdm(total=2 * num_texts, desc="texts") as bar:
        torch.manual_seed(seed)
        for is_sampled in (False, True):
            for start in range(0, num_texts, _ROWS):
                some = prompts[start : start + _ROWS]
                replies = written(model, some, num_tokens, 1.0 if is_sampled else None)
                pairs = zip(some, replies, strict=True)
                texts += [Text(prompt, reply, is_sampled) for prompt, reply in pairs]
                bar.update(len(some))
    return texts


def _prompts(
    tokenizer: Tokenizer, num_prompts: int, longest: int, kind: str | None, seed: int
) -> list[list[int]]:
    prompts: list[list[int]] = []
    chats = held_out_chats(random.Random(f"pair texts:{seed}"), kind)
    for messages in islice(chats, 100 * num_prompts):
        if tokenizer.has_chat_template:
            ids = tokenizer.encode_chat(messages)
        else:
            ids = tokenizer.encode(messages[-1]["content"])
        if len(ids) <= longest:
            prompts.append(ids)
        if len(prompts) == num_prompts:
            return prompts
    raise ValueError(f"the texts leave {longest} tokens of the model's context for prompts")
