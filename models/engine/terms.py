"""Checks that passes can be computed and sampled by the terms of messages.

Clients' values are checked with narrower limits where they come in. The checks here are against a
peer of another version, or a broken one. It must not bring down the pass of everybody.
"""

from __future__ import annotations

import math
from collections.abc import Collection
from itertools import chain

from models.protocol.messages import (
    MAX_DRAFT_TOKENS,
    Choose,
    EngineQuestion,
    Open,
    Propose,
    Verify,
)

_LARGEST = 1e6  # bound on a logit's addends and factors: float32 keeps a finite score


def check_terms(opened: Open) -> None:
    """Checks the numbers of `opened`.

    Raises:
        ValueError: one of them is out of range; names it, its limits and its value.
    """
    sampling = opened.sampling
    limits: list[tuple[str, float, float, float]] = [
        ("temperature", sampling.temperature, 0.0, _LARGEST),
        ("top_p", sampling.top_p, 0.0, 1.0),
        ("min_p", sampling.min_p, 0.0, 1.0),
        ("top_k", sampling.top_k, 0, math.inf),
        ("presence_penalty", sampling.presence_penalty, -_LARGEST, _LARGEST),
        ("frequency_penalty", sampling.frequency_penalty, -_LARGEST, _LARGEST),
        ("repetition_penalty", sampling.repetition_penalty, 1.0 / _LARGEST, _LARGEST),
        *(("logit_bias", bias, -_LARGEST, _LARGEST) for _, bias in sampling.logit_bias),
        ("prompt_len", opened.prompt_len, 0, math.inf),
    ]
    for name, value, low, high in limits:
        if not low <= value <= high:  # NaN is not
            raise ValueError(f"{name} must be within {low:g}..{high:g}, got {value:g}")


def adapter_number(name: str, adapters: Collection[str]) -> int:
    """Return the number of an adapter among those of an engine, from 1; 0 for no name.

    Raises:
        ValueError: the engine has none of this name.
    """
    if not name:
        return 0
    if name not in adapters:
        there = ", ".join(adapters) or "there is none"
        raise ValueError(f"adapter must be one of this engine's ({there}), got {name!r}")
    return 1 + list(adapters).index(name)


def complaint(message: EngineQuestion, opened: Open, *, num_input_ids: int, vocab_size: int) -> str:
    """Why a message cannot be acted on whatever the state of the engine, or "".

    Args:
        message: of a session that is open.
        opened: its terms.
        num_input_ids: ids that the model reads.
        vocab_size: ids that may be sampled.
    """
    draft: list[int] = []
    match message:
        case Verify():
            draft = message.draft
            reason = _verify_complaint(message)
        case Choose():
            draft = list(chain.from_iterable(message.choices))
            reason = _choices_complaint(message, opened, vocab_size)
        case Propose():
            draft = message.guess
            reason = _draft_complaint(message)
    if reason:
        return reason
    if not message.tokens:
        return "tokens must not be empty"
    tells_prompt = opened.sampling.num_prompt_logprobs >= 0  # by the logits of its tokens
    num_ids = min(num_input_ids, vocab_size) if tells_prompt else num_input_ids
    for ids, limit in ((message.tokens, num_ids), (draft, vocab_size)):
        if ids and (min(ids) < 0 or max(ids) >= limit):
            return f"token ids must be within 0..{limit - 1}, got {min(ids)}..{max(ids)}"
    length = message.base_len + len(message.tokens)
    is_whole = opened.constraint is not None or tells_prompt
    if is_whole and length < opened.prompt_len:
        return f"the prompt has {opened.prompt_len} tokens, got {length}"
    return ""


def _choices_complaint(message: Choose, opened: Open, vocab_size: int) -> str:
    if not message.choices or not all(message.choices):
        return "choices must not be empty"
    if opened.constraint is not None:
        return "choices cannot be weighed under a constraint"
    if not any(0 <= token_id < vocab_size for token_id in opened.eos_ids):
        return "choices need a token that ends them, there is none in eos_ids"
    return ""


def _verify_complaint(message: Verify) -> str:
    if message.run_on < 0:
        return f"run_on must not be negative, got {message.run_on}"
    if not 0 <= message.own_length <= MAX_DRAFT_TOKENS:
        return f"own_length must be within 0..{MAX_DRAFT_TOKENS}, got {message.own_length}"
    return ""


def _draft_complaint(message: Propose) -> str:
    if message.num_draft_tokens < 1:
        return f"num_draft_tokens must be at least 1, got {message.num_draft_tokens}"
    if len(message.guess) > MAX_DRAFT_TOKENS:
        return f"guess must have at most {MAX_DRAFT_TOKENS} tokens, got {len(message.guess)}"
    return ""
