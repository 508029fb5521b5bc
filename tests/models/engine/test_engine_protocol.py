"""Draft and target engines together: the text is the plain text, whatever k, batch and link do."""

from __future__ import annotations

import random
from collections.abc import Sequence
from functools import cache

import pytest

from models.config import DtypeName
from models.engine.base import Engine
from models.protocol.messages import Sampling
from tests.fakes.engines import (
    CONSTRAINT,
    EOS_ID,
    BadLink,
    Client,
    Link,
    ScriptedMasks,
    lowest_third,
    make_draft,
    make_target,
    random_prompt,
    reference_greedy,
    run_clients,
)

pytestmark = pytest.mark.every_engine

PROMPTS = [random_prompt(i, 3 + 11 * i) for i in range(8)]
NUM_TOKENS = 12


def check_free(*engines: Engine) -> None:
    for engine in engines:
        pool = engine.runner.pool
        pool.check([])
        assert pool.num_free == pool.num_blocks


def decode(
    samplings: Sequence[Sampling],
    k: int,
    *,
    dtype: DtypeName = "float32",
    noise: float = 0.02,
    run_on: int = 0,
    which: Sequence[int] = range(8),
) -> tuple[dict[int, list[int]], list[Client]]:
    """Texts of the prompts `which`, decoded together over perfect links."""
    target, draft = make_target(dtype=dtype), make_draft(noise=noise, dtype=dtype)
    target_link, draft_link = Link(target), Link(draft)
    clients = [
        Client(
            session_id=f"s{i}",
            prompt=PROMPTS[i],
            sampling=samplings[i],
            num_tokens=NUM_TOKENS,
            target_link=target_link,
            draft_link=draft_link if k else None,
            num_draft_tokens=lambda: k,
            run_on=lambda: run_on,
        )
        for i in which
    ]
    texts = dict(zip(which, run_clients(clients), strict=True))
    check_free(target, draft)
    return texts, clients


GREEDY = [Sampling(temperature=0)] * 8
SEEDED = [
    Sampling(seed=1000 + i, top_p=0.9 if i % 3 == 1 else 1.0, top_k=40 if i % 3 == 2 else 0)
    for i in range(8)
]


@cache
def plain_seeded() -> dict[int, list[int]]:
    """Seeded texts in bfloat16, each alone and without speculation."""
    texts: dict[int, list[int]] = {}
    for i in range(8):
        texts |= decode(SEEDED, 0, dtype="bfloat16", which=[i])[0]
    return texts


@cache
def greedy_reference(index: int) -> list[int]:
    return reference_greedy(PROMPTS[index], NUM_TOKENS)


@pytest.mark.parametrize("k", [0, 1, 3, 5])
def test_greedy_text_is_that_of_transformers(k: int) -> None:
    texts, clients = decode(GREEDY, k)
    for i, text in texts.items():
        expected = greedy_reference(i)
        assert text[: len(expected)] == expected
    if k:
        num_accepted = sum(v.num_accepted for c in clients for v in c.verdicts)
        num_drafted = sum(len(p.tokens) for c in clients for p in c.proposals)
        assert 0 < num_accepted < num_drafted  # both sides of the rule were taken


@pytest.mark.parametrize("k", [0, 1, 2, 3, 4, 5])
def test_seeded_text_does_not_depend_on_k_or_neighbours(k: int) -> None:
    assert decode(SEEDED, k, dtype="bfloat16")[0] == plain_seeded()


TWIN = 1e-12  # too small to change a weight: the target's own model in a pool of its own


@pytest.mark.parametrize("noise", [TWIN, 0.2])
def test_seeded_text_does_not_depend_on_the_draft_model(noise: float) -> None:
    texts, clients = decode(SEEDED, 3, dtype="bfloat16", noise=noise)
    assert texts == plain_seeded()
    if noise == TWIN:
        whole = [v for c in clients for v in c.verdicts[:-1]]
        assert all(verdict.num_accepted == 3 for verdict in whole)


def test_seeded_text_does_not_depend_on_run_on() -> None:
    assert decode(SEEDED, 0, dtype="bfloat16", run_on=7)[0] == plain_seeded()
    assert decode(SEEDED, 2, dtype="bfloat16", run_on=3)[0] == plain_seeded()


def test_other_seeds_give_other_texts() -> None:
    other = [Sampling(seed=2000 + i) for i in range(8)]
    assert decode(other, 2, dtype="bfloat16")[0] != plain_seeded()


def constrained_texts(seed: int | None, delay_polls: int) -> list[list[int]]:
    """Texts under the grammar; with a seed: drafts, random k and bad links."""
    masks, draft_masks = ScriptedMasks(), ScriptedMasks()
    masks.delay_polls = draft_masks.delay_polls = delay_polls
    draft_masks.committed = masks.committed  # one constraint service, a link to it from each
    target = make_target(masks, dtype="bfloat16")
    draft = make_draft(draft_masks, noise=0.02, dtype="bfloat16")
    target_link, draft_link = Link(target), Link(draft)
    if seed is not None:
        target_link, draft_link = BadLink(target, seed), BadLink(draft, seed + 1)
    generator = random.Random(seed)
    clients = []
    for i in range(8):
        session_id = f"s{i}"
        masks.open(session_id, CONSTRAINT)
        clients.append(
            Client(
                session_id=session_id,
                prompt=PROMPTS[i],
                sampling=SEEDED[i],
                num_tokens=NUM_TOKENS,
                target_link=target_link,
                draft_link=draft_link if seed is not None else None,
                num_draft_tokens=lambda: generator.choice([0, 1, 3, 9]),
                run_on=lambda: generator.choice([0, 2]),
                constraint=CONSTRAINT,
                eos_ids=[EOS_ID],
                on_commit=masks.committed[session_id].extend,
            )
        )
    texts = run_clients(clients)
    assert not [failure for client in clients for failure in client.failures]
    check_free(target, draft)
    return texts


@pytest.mark.parametrize("delay_polls", [0, 2])
def test_constrained_text_obeys_the_grammar_and_does_not_depend_on_drafts(delay_polls: int) -> None:
    plain = constrained_texts(None, 0)
    for text in plain:
        assert text[-1] == EOS_ID
        assert all(token in lowest_third(text[:i]) for i, token in enumerate(text))
    for seed in (1, 2):
        assert constrained_texts(seed, delay_polls) == plain
