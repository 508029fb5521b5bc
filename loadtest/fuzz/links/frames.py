"""Frames as no router of ours sends them: noise, valid ones with something wrong, valid nonsense.

Sessions named are the attacker's own or nobody's. A peer on the allow-list is trusted not to speak
for others' sessions. It is not trusted to be of the same version, or whole.
"""

from __future__ import annotations

import copy
import random
from collections.abc import Sequence
from typing import Any

import msgspec

from loadtest.fuzz.engines.grammars import random_grammar
from loadtest.fuzz.engines.requests import random_ids, random_sampling
from models.protocol.messages import (
    Choose,
    Close,
    DraftProbs,
    Endpoint,
    GrammarClose,
    GrammarCommit,
    GrammarOpen,
    MaskRequest,
    Open,
    Propose,
    Verify,
)
from models.protocol.token_sequence import EMPTY_HASH

_ENCODER = msgspec.msgpack.Encoder()


def random_frame(rng: random.Random, messages: Sequence[Any]) -> bytes:
    """Make a frame from some valid messages."""
    kind = rng.choice(("noise", "bytes", "bytes", "fields", "fields", "valid"))
    if kind == "noise":
        return rng.randbytes(rng.randint(0, 200))
    if kind == "fields":
        content = [msgspec.to_builtins(message, builtin_types=(bytes,)) for message in messages]
        for _ in range(rng.choice((1, 1, 3))):
            _change(rng, rng.choice(content))
        return _encoded(content)
    frame = _encoded(messages)
    return _spoilt(rng, frame) if kind == "bytes" else frame


def engine_messages(rng: random.Random, epoch: int, session_ids: Sequence[str]) -> list[Any]:
    """Return one to four messages to an engine, of valid types and doubtful sense."""
    return [_engine_message(rng, epoch, rng.choice(session_ids)) for _ in range(rng.randint(1, 4))]


def constraint_messages(rng: random.Random, epoch: int, session_ids: Sequence[str]) -> list[Any]:
    """Return one to four messages to a constraint service."""
    return [
        _constraint_message(rng, epoch, rng.choice(session_ids)) for _ in range(rng.randint(1, 4))
    ]


def _engine_message(rng: random.Random, epoch: int, session_id: str) -> Any:
    epoch = epoch if rng.random() < 0.9 else rng.getrandbits(62)
    head: dict[str, Any] = {"session_id": session_id, "epoch": epoch}
    kind = rng.choice((Open, Open, Propose, Verify, Verify, Choose, Close))
    if kind is Close:
        return Close(**head)
    if kind is Open:
        endpoint = Endpoint(address="tcp://127.0.0.1:1", public_key="k" * 40, epoch=1)
        return Open(
            **head,
            sampling=random_sampling(rng, 20),
            eos_ids=random_ids(rng, rng.randint(0, 3)),
            prompt_len=rng.choice((0, 1, 3, 500, -1)),
            constraint=endpoint if rng.random() < 0.1 else None,
            cache_salt=rng.choice(("", "a")),
        )
    head |= {
        "seq": rng.choice((0, 1, 2, rng.randint(0, 99), -1, 2**62)),
        "base_len": rng.choice((0, 0, 0, 3, 500, -1)),
        "prefix_hash": rng.choice((EMPTY_HASH, EMPTY_HASH, rng.getrandbits(60))),
        "tokens": rng.choice((random_ids(rng, rng.randint(1, 40)), [], [-1], [2**40], [0] * 600)),
    }
    if kind is Propose:
        num_draft = rng.choice((1, 4, 8, 0, -1, 100))
        deadline_ms = rng.choice((0.0, 50.0, -1.0, 1e9))
        return Propose(**head, num_draft_tokens=num_draft, deadline_ms=deadline_ms)
    if kind is Choose:
        texts = [random_ids(rng, rng.randint(1, 9)) for _ in range(rng.randint(1, 12))]
        return Choose(**head, choices=rng.choice((texts, texts, [*texts, []], [[-1]], [[2**33]])))
    probs = DraftProbs(
        num_pairs=rng.choice((0, 1, 4, -1, 2**31)),
        token_ids=rng.randbytes(rng.choice((0, 16, 17))),
        probs=rng.randbytes(16),
    )
    return Verify(
        **head,
        draft=rng.choice(([], random_ids(rng, 4), random_ids(rng, 90), [-5], [2**33])),
        run_on=rng.choice((0, 1, 30, -1, 10**6)),
        draft_probs=probs if rng.random() < 0.3 else None,
        away_ms=rng.choice((0.0, 8.0, -1.0, 1e12)),
    )


def _constraint_message(rng: random.Random, epoch: int, session_id: str) -> Any:
    epoch = epoch if rng.random() < 0.9 else rng.getrandbits(62)
    head: dict[str, Any] = {"session_id": session_id, "epoch": epoch}
    kind = rng.choice((GrammarOpen, GrammarOpen, GrammarCommit, MaskRequest, GrammarClose))
    if kind is GrammarClose:
        return GrammarClose(**head)
    if kind is GrammarOpen:
        peers = rng.choice(([], ["k" * 40], ["", "é", "x" * 999]))
        return GrammarOpen(**head, grammar=random_grammar(rng), peers=peers)
    prefix: dict[str, Any] = {
        "base_len": rng.choice((0, 0, 3, -1, 2**40)),
        "prefix_hash": rng.choice((EMPTY_HASH, rng.getrandbits(60), -1)),
    }
    tokens = rng.choice((random_ids(rng, 3), [], [-1], [2**31], [2**63 - 1], random_ids(rng, 900)))
    if kind is GrammarCommit:
        return GrammarCommit(**head, **prefix, seq=rng.choice((0, 1, -1, 2**62)), tokens=tokens)
    num_rows = rng.choice((1, 2, 0, -1, 65, 2**40))
    return MaskRequest(
        **head, **prefix, ticket=rng.getrandbits(40), chain=tokens, num_rows=num_rows
    )


_STRANGE: tuple[Any, ...] = (
    None,
    True,
    -1,
    0,
    2**31,
    2**63,
    2**64 - 1,
    1.5,
    float("nan"),
    float("inf"),
    -1e30,
    "",
    "é" * 40,
    b"\xff\xfe",
    [],
    [None],
    [[1]],
    {},
    {"a": 1},
    [7] * 5000,
)


def _change(rng: random.Random, value: dict[Any, Any] | list[Any]) -> None:
    keys: list[Any] = list(value) if isinstance(value, dict) else list(range(len(value)))
    if not keys:
        return
    key = rng.choice(keys)
    inner = value[key]
    if isinstance(inner, dict | list) and inner and rng.random() < 0.7:
        _change(rng, inner)
    elif key not in ("session_id", "epoch") or rng.random() < 0.1:  # else most name nobody
        value[key] = copy.deepcopy(rng.choice(_STRANGE))  # it may be changed further


def _spoilt(rng: random.Random, frame: bytes) -> bytes:
    changed = bytearray(frame)
    for _ in range(rng.choice((1, 1, 2, 8))):
        at = rng.randrange(len(changed))
        match rng.randrange(4):
            case 0:
                changed[at] = rng.randrange(256)
            case 1:
                changed[at:at] = rng.randbytes(rng.randint(1, 3))
            case 2:
                del changed[at : at + rng.randint(1, 4)]
            case _:
                changed[at] ^= 1 << rng.randrange(8)
        if not changed:
            break
    return bytes(changed)


def _encoded(content: Any) -> bytes:
    return _ENCODER.encode(content)
