"""Random bodies of the completion routes that must be served."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from typing import Any

from loadtest.fuzz.engines.grammars import MAX_DEPTH, random_grammar, random_schema
from loadtest.fuzz.engines.pair import VOCAB_SIZE
from models.protocol.rules import RULES
from router.drafters.registry import DRAFTERS

MODEL = "fuzz"
PATHS = ("/v1/chat/completions", "/v1/completions")
_FUNCTIONS = ("find", "add_2", "say-it")
_TEXTS = ("The dog", "a", "Füße, 東京 🙂", '{"a": [1, 2]}', "x " * 40, "<|im_end|>", "\u0000\u001b")


def valid_body(rng: random.Random, path: str) -> dict[str, Any]:
    """Return a body that must be served."""
    if rng.random() < 0.1:
        return _looking_ahead(rng, path)
    body: dict[str, Any] = {"model": MODEL, "max_tokens": rng.randint(1, 12)}
    is_chat = path == PATHS[0]
    if is_chat:
        body["messages"] = [
            {"role": rng.choice(("system", "user", "assistant")), "content": _content(rng)}
            for _ in range(rng.randint(1, 3))
        ]
    else:
        body["prompt"] = rng.choice(
            (rng.choice(_TEXTS), [rng.randrange(2, VOCAB_SIZE) for _ in range(5)], ["one text"])
        )
    for name, make in FIELDS.items():
        if rng.random() < 0.15:
            body[name] = make(rng)
    if body.get("stream"):
        body.pop("prompt_logprobs", None)
    else:
        body.pop("stream_options", None)
    _add_logprobs(rng, body, is_chat=is_chat)
    if rng.random() < 0.3:
        _constrain(rng, body)
    elif is_chat and rng.random() < 0.3:
        _add_tools(rng, body)
    if "min_tokens" in body:
        body["min_tokens"] = min(body["min_tokens"], body["max_tokens"])
    return body


def _looking_ahead(rng: random.Random, path: str) -> dict[str, Any]:
    """Return a request for a text that a reward steers; most other fields conflict with it."""
    prompt = rng.choice(_TEXTS)
    said = {"messages": [{"role": "user", "content": prompt}]}
    fields = ("seed", "stop", "stream", "cache_salt", "user")
    own = {name: make(rng) for name, make in LOOKAHEAD_FIELDS.items() if rng.random() < 0.3}
    return {
        "model": MODEL,
        "max_tokens": rng.randint(1, 12),
        **(said if path == PATHS[0] else {"prompt": prompt}),
        **{name: FIELDS[name](rng) for name in fields if rng.random() < 0.15},
        "lookahead": {"method": rng.choice(("cdsl", "cdlh")), "reward": _reward(rng), **own},
    }


def _reward(rng: random.Random) -> dict[str, Any]:
    words = rng.sample(("dog", "é", "東京", "the"), rng.randint(1, 3))
    return rng.choice(
        (
            {"kind": "concepts", "concepts": words},
            {"kind": "words", "required": words[:1], "forbidden": words[1:]},
            {"kind": "length", "unit": "characters", "max": rng.randint(1, 40)},
        )
    )


def _add_tools(rng: random.Random, body: dict[str, Any]) -> None:
    """Functions, and who is to be called; a few answers are long enough for a whole call."""
    body.pop("ignore_eos", None)
    body["max_tokens"] = rng.choice((4, 60))
    names = rng.sample(_FUNCTIONS, rng.randint(1, len(_FUNCTIONS)))
    functions = [{"type": "function", "function": {"name": name}} for name in names]
    body["tools"] = [
        {"type": "function", "function": {"name": name, "parameters": _parameters(rng)}}
        for name in names
    ]
    some = {"mode": rng.choice(("auto", "required")), "tools": functions[:1]}
    allowed = {"type": "allowed_tools", "allowed_tools": some}
    body["tool_choice"] = rng.choice(("none", "auto", "required", functions[-1], allowed))
    body["parallel_tool_calls"] = rng.random() < 0.5


def _parameters(rng: random.Random) -> dict[str, Any]:
    """Return a flat schema.

    Prompts list the tools, and the pair's window is small.
    """
    names = rng.sample(("a", "city", "x-1"), rng.randint(0, 2))
    properties = {name: random_schema(rng, MAX_DEPTH) for name in names}
    return {"type": "object", "properties": properties, "required": names[:1]}


def _add_logprobs(rng: random.Random, body: dict[str, Any], *, is_chat: bool) -> None:
    if rng.random() > 0.25:
        return
    if is_chat:
        body["logprobs"] = True
        if rng.random() < 0.7:
            body["top_logprobs"] = rng.randint(0, 20)
    else:
        body["logprobs"] = rng.randint(0, 20)
        body["echo"] = rng.random() < 0.5 and not body.get("stream")


def _constrain(rng: random.Random, body: dict[str, Any]) -> None:
    body.pop("ignore_eos", None)
    grammar = random_grammar(rng)
    if grammar.kind == "json_schema" and rng.random() < 0.5:
        schema = {"name": "s", "schema": random_schema(rng)}
        body["response_format"] = {"type": "json_schema", "json_schema": schema}
    elif grammar.kind == "json_schema":
        body["structured_outputs"] = {"json": json.loads(grammar.text)}
    elif grammar.kind == "json_object":
        body["response_format"] = {"type": "json_object"}
    elif grammar.kind == "regex":
        body["structured_outputs"] = {"regex": grammar.text}
    elif grammar.kind in ("lark", "ebnf"):
        body["structured_outputs"] = {"grammar": grammar.text}
    elif grammar.kind == "structural_tag":
        tag = json.loads(grammar.text)
        if rng.random() < 0.5:
            body["response_format"] = {"type": "structural_tag", **tag}
        else:
            body["structured_outputs"] = {"structural_tag": tag}
    else:
        body["structured_outputs"] = {"choice": json.loads(grammar.text)}
        if "min_tokens" in body or "bad_words" in body or rng.random() < 0.3:
            body["structured_outputs"]["choice_sampling"] = "masked"


def _content(rng: random.Random) -> Any:
    text = rng.choice(_TEXTS)
    return text if rng.random() < 0.8 else [{"type": "text", "text": text}]


FIELDS: dict[str, Callable[[random.Random], Any]] = {
    "temperature": lambda rng: rng.choice((0, 0.7, 2)),
    "top_p": lambda rng: rng.uniform(0.01, 1),
    "top_k": lambda rng: rng.choice((-1, 0, 7, 2**31 - 1)),
    "min_p": lambda rng: rng.random(),
    "presence_penalty": lambda rng: rng.uniform(-2, 2),
    "frequency_penalty": lambda rng: rng.uniform(-2, 2),
    "repetition_penalty": lambda rng: rng.choice((0.001, 1, 1.3, 1000)),
    "seed": lambda rng: rng.choice((0, -1, 2**64 - 1, -(2**63))),
    "logit_bias": lambda rng: {str(rng.randrange(VOCAB_SIZE)): rng.uniform(-100, 100)},
    "min_tokens": lambda rng: rng.randint(0, 5),
    "bad_words": lambda rng: rng.choice(([], ["dog"], [" the", "é"])),
    "prompt_logprobs": lambda rng: rng.randint(0, 20),
    "n": lambda rng: rng.randint(1, 4),
    "stop": lambda rng: rng.choice(("a", ["the", "."], [])),
    "stop_token_ids": lambda rng: [rng.randrange(VOCAB_SIZE) for _ in range(3)],
    "include_stop_str_in_output": lambda rng: True,
    "stream": lambda rng: True,
    "stream_options": lambda rng: {"include_usage": rng.random() < 0.5},
    "ignore_eos": lambda rng: True,
    "cache_salt": lambda rng: "salt",
    "speculation": lambda rng: {
        "k": rng.randint(0, 8),
        "drafter": rng.choice(tuple(DRAFTERS)),
        "verification": rng.choice(tuple(RULES)),
    },
    "user": lambda rng: "somebody",
    "tools": lambda rng: [],
}
LOOKAHEAD_FIELDS: dict[str, Callable[[random.Random], Any]] = {
    "length": lambda rng: rng.randint(1, 12),
    "candidates": lambda rng: rng.randint(1, 12),
    "acceptance": lambda rng: rng.choice(("paper", "gain")),
    "accept_threshold": lambda rng: rng.choice((0, 0.5, 1)),
    "reward_threshold": lambda rng: rng.choice((0, 0.5, 1)),
    "reward_weight": lambda rng: rng.choice((0, 8, 100)),
    "verification": lambda rng: rng.choice(("hard", "speculative_sampling")),
    "generation": lambda rng: rng.choice(("lookahead", "plain")),
    "rollout": lambda rng: rng.choice(("greedy", "sampled")),
    "commit": lambda rng: rng.choice(("token", "gain", "rollout")),
    "seed": lambda rng: rng.choice((0, -1, 2**64 - 1, -(2**63))),
    "budget": lambda rng: rng.choice((1, 10, 10**9)),
}
