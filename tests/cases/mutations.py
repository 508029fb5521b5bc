"""Frames of every message type, and frames like them that are broken at random."""

from __future__ import annotations

import math
import random
from typing import Any

import msgspec

from models.protocol.messages import (
    Close,
    DraftProbs,
    Endpoint,
    Grammar,
    GrammarClose,
    GrammarCommit,
    GrammarOpen,
    MaskMiss,
    MaskRequest,
    Masks,
    Open,
    Propose,
    Sampling,
    Verify,
)
from models.protocol.token_sequence import TokenSequence
from models.sampling.draft_probs import NUM_PAIRS

SAMPLINGS = [
    Sampling(temperature=0.0),
    Sampling(temperature=0.8, top_p=0.9, top_k=20, min_p=0.01, seed=7),
    Sampling(presence_penalty=0.5, repetition_penalty=1.2, frequency_penalty=0.1),
    Sampling(logit_bias=((5, 2.0), (9, -3.0)), min_tokens=4, bad_words=((3, 4), (5,))),
    Sampling(num_logprobs=3, num_prompt_logprobs=2, verification="rejection", temperature=0.9),
]
_ODD: list[Any] = [
    *(0, 1, -1, 2, 300, 2**31, 2**32 + 5, 2**62, 2**63 - 1, 2**64 - 1, -(2**31), -(2**63)),
    *(0.0, -1.0, 0.5, 1e300, -1e300, 5e-324, math.nan, math.inf, -math.inf),
    *("", "a", "\x00", "ä" * 50, b"", b"\xff" * 7, None, True, [], [[]], {}, [-1], [2**40]),
]


def engine_messages(session_id: str, epoch: int, seq: int, rng: random.Random) -> list[Any]:
    """An opening and one message of each type for an engine, all of them fine."""
    prompt = [rng.randrange(200) for _ in range(rng.randrange(4, 30))]
    header: dict[str, Any] = {
        "session_id": session_id,
        "epoch": epoch,
        "prefix_hash": TokenSequence([]).hash_at(0),
    }
    draft = [rng.randrange(200) for _ in range(3)]
    probs = DraftProbs(
        num_pairs=NUM_PAIRS,
        token_ids=b"".join(t.to_bytes(4, "little") * NUM_PAIRS for t in draft),
        probs=bytes(4 * NUM_PAIRS * len(draft)),
    )
    constraint = Endpoint(address="tcp://127.0.0.1:1", public_key="k" * 40, epoch=3)
    opening = Open(
        session_id=session_id,
        epoch=epoch,
        sampling=rng.choice(SAMPLINGS),
        eos_ids=[255],
        prompt_len=len(prompt),
        constraint=rng.choice([None, None, constraint]),
        cache_salt=rng.choice(["", "salt"]),
    )
    return [
        opening,
        Propose(
            **header,
            seq=seq,
            base_len=0,
            tokens=prompt,
            num_draft_tokens=3,
            deadline_ms=50.0,
        ),
        Verify(
            **header,
            seq=seq,
            base_len=0,
            tokens=prompt,
            draft=draft,
            run_on=2,
            draft_probs=rng.choice([None, probs]),
        ),
        Close(session_id=session_id, epoch=epoch),
    ]


def constraint_messages(session_id: str, epoch: int) -> list[Any]:
    """One message of each type for a constraint service."""
    header: dict[str, Any] = {"session_id": session_id, "epoch": epoch}
    return [
        GrammarOpen(**header, grammar=Grammar(kind="regex", text="[a-z]{3}"), peers=["k" * 40]),
        GrammarCommit(**header, seq=1, base_len=0, prefix_hash=0, tokens=[1, 2]),
        MaskRequest(**header, ticket=3, base_len=0, prefix_hash=0, chain=[5], num_rows=2),
        GrammarClose(**header),
    ]


def mask_answers(session_id: str, ticket: int) -> list[Any]:
    """One message of each type for whoever asked for masks."""
    return [
        Masks(
            session_id=session_id,
            ticket=ticket,
            committed_len=0,
            committed_hash=0,
            num_valid_rows=1,
            row_bytes=32,
            rows=b"\xff" * 32,
        ),
        MaskMiss(session_id=session_id, ticket=ticket, reason="stale"),
    ]


def broken(messages: list[Any], rng: random.Random) -> bytes:
    """A frame of these messages with some bytes or some values of it exchanged."""
    frame = msgspec.msgpack.encode(messages)
    if rng.random() < 0.5:
        tree = msgspec.msgpack.decode(frame)
        for _ in range(rng.choice([1, 1, 2])):
            tree = _with_odd_value(tree, rng)
        return msgspec.msgpack.encode(tree)
    data = bytearray(frame)
    for _ in range(rng.choice([1, 1, 2, 4])):
        at = rng.randrange(len(data))
        match rng.randrange(4):
            case 0:
                data[at] = rng.randrange(256)
            case 1:
                data[at] ^= 1 << rng.randrange(8)
            case 2:
                data[at:at] = data[rng.randrange(len(data)) :][: rng.randrange(1, 9)]
            case 3 if len(data) > 9:
                del data[at : at + rng.randrange(1, 9)]
    return bytes(data)


def _with_odd_value(tree: Any, rng: random.Random) -> Any:
    """The tree with one of its leaves, or a small part of it, replaced."""
    if isinstance(tree, dict) and tree and rng.random() < 0.95:
        key = rng.choice([key for key in tree if key != "type"] or list(tree))
        return tree | {key: _with_odd_value(tree[key], rng)}
    if isinstance(tree, list) and tree and rng.random() < 0.8:
        at = rng.randrange(len(tree))
        return [*tree[:at], _with_odd_value(tree[at], rng), *tree[at + 1 :]]
    return rng.choice(_ODD)
