"""A chain of draft steps gives what single steps give, and leaves the engine as they would."""

from __future__ import annotations

import random
from typing import Any

import pytest

from models.engine.draft import DraftEngine
from models.engine.drafting.chain import ChainLink, is_chainable, reserve_chain
from models.engine.runner import ModelRunner
from models.grammar.masks import MaskSource, NoMaskSource
from models.kv.block_pool import BlockPool
from models.protocol.messages import Proposal, Sampling
from models.protocol.token_sequence import TokenSequence
from tests.cases.kv_tokens import num_kv_tokens
from tests.cases.messages import opening, proposing
from tests.fakes.engines import (
    CONSTRAINT,
    EPOCH,
    Client,
    FakeClock,
    Link,
    ScriptedMasks,
    drain,
    make_runner,
    make_target,
    random_prompt,
    reference_greedy,
    run_clients,
)

GREEDY = Sampling(temperature=0)


def engine(
    *,
    chains: bool,
    noise: float = 0.0,
    masks: MaskSource | None = None,
    clock: FakeClock | None = None,
    **limits: Any,
) -> DraftEngine:
    runner = make_runner(noise=noise, **limits)
    times = {} if clock is None else {"clock": clock}
    made = DraftEngine(runner, masks or NoMaskSource(), EPOCH, **times)
    made.chains = chains
    return made


def count_passes(runner: ModelRunner, patch: pytest.MonkeyPatch) -> list[int]:
    """Appends the number of sessions of every pass."""
    counts: list[int] = []
    forward = runner.forward

    def counted(sequences, *args):
        counts.append(len(sequences))
        return forward(sequences, *args)

    patch.setattr(runner, "forward", counted)
    return counts


def proposals(drafter: DraftEngine, asked: list[tuple[str, Sampling, list[int], int]]) -> dict:
    for session_id, sampling, prompt, k in asked:
        drafter.submit(opening(session_id, sampling, len(prompt)), "r")
        drafter.submit(proposing(session_id, 1, prompt, k), "r")
    replies = drain(drafter)
    assert all(isinstance(reply, Proposal) for reply in replies)
    drafter.runner.pool.check(drafter.block_tables())
    return {reply.session_id: reply for reply in replies}


SAMPLINGS = {
    "greedy": GREEDY,
    "sampled": Sampling(temperature=1.0, seed=5),
    "truncated": Sampling(temperature=0.8, top_k=20, top_p=0.9, min_p=0.01, seed=6),
    "greedy under rejection": Sampling(temperature=0, verification="rejection"),
}


@pytest.mark.parametrize("name", SAMPLINGS)
def test_a_chain_draws_what_steps_draw(name: str):
    asked = [
        (f"s{i}", SAMPLINGS[name], random_prompt(i, 5 + 11 * i), k)
        for i, k in enumerate((1, 4, 4, 7))
    ]
    drafted = [
        {s: reply.tokens for s, reply in proposals(engine(chains=on), asked).items()}
        for on in (False, True)
    ]
    assert drafted[1] == drafted[0]
    assert [len(drafted[1][f"s{i}"]) for i in range(4)] == [1, 4, 4, 7]


def test_one_engine_step_is_one_chain(monkeypatch: pytest.MonkeyPatch):
    drafter = engine(chains=True)
    counts = count_passes(drafter.runner, monkeypatch)
    prompt = random_prompt(1, 12)
    drafter.submit(opening("s", GREEDY, 12), "r")
    drafter.submit(proposing("s", 1, prompt, 6), "r")
    ((_, reply),) = drafter.step()
    assert counts == [1] * 6
    assert reply.tokens == reference_greedy(prompt, 6)
    assert reply.timing.pass_ms > 0
    assert num_kv_tokens(drafter) == 12 + 5  # as after six single steps


def test_the_next_round_goes_on_from_a_chain():
    drafter = engine(chains=True)
    prompt = random_prompt(1, 12)
    text = reference_greedy(prompt, 9)
    drafter.submit(opening("s", GREEDY, 12), "r")
    drafter.submit(proposing("s", 1, prompt, 4), "r")
    (first,) = drain(drafter)
    assert first.tokens == text[:4]
    drafter.submit(proposing("s", 2, [*prompt, *text[:5]], 4, base_len=12 + 4), "r")
    (second,) = drain(drafter)
    assert second.tokens == text[5:9]


def test_what_chains_compute_is_found_by_others():
    drafter = engine(chains=True)
    prompt = random_prompt(1, 12)
    text = reference_greedy(prompt, 9)
    for seq, length in enumerate((12, 17, 21), start=1):
        drafter.submit(opening("s", GREEDY, 12), "r")
        drafter.submit(proposing("s", seq, [*prompt, *text][:length], 3), "r")
        drain(drafter)
        # What a draft guessed is not among it: of the second round's block, its last four rows.
        assert drafter.load().num_cached_blocks == length // 16
    proposals(drafter, [("other", GREEDY, [*prompt, *text], 3)])
    assert drafter.load().prefix_hits == 16


def test_who_awaits_a_prompt_that_a_chain_computes_finds_it(monkeypatch: pytest.MonkeyPatch):
    drafter = engine(chains=True, max_num_batched_tokens=256)
    counts = count_passes(drafter.runner, monkeypatch)
    prompt = random_prompt(1, 150)
    asked = [("first", GREEDY, prompt, 3), ("same", GREEDY, prompt, 3)]
    drafted = proposals(drafter, asked)
    assert drafted["first"].tokens == drafted["same"].tokens
    assert counts == [1] * 6
    assert drafter.load().prefix_hits == 144


def test_a_full_pool_shortens_the_chain(monkeypatch: pytest.MonkeyPatch):
    drafter = engine(chains=True, kv_cache_tokens=32)
    counts = count_passes(drafter.runner, monkeypatch)
    reply = proposals(drafter, [("s", GREEDY, random_prompt(3, 30), 6)])["s"]
    expected = reference_greedy(random_prompt(3, 30), 6)
    assert reply.tokens == expected[: len(reply.tokens)]
    assert (len(reply.tokens), reply.cut) == (3, "context")
    assert len(counts) == 3


def test_constrained_sessions_are_drafted_step_by_step(monkeypatch: pytest.MonkeyPatch):
    masks = ScriptedMasks()
    masks.committed["c"] = TokenSequence()
    drafter = engine(chains=True, masks=masks)
    counts = count_passes(drafter.runner, monkeypatch)
    prompt = random_prompt(4, 9)
    drafter.submit(opening("c", GREEDY, 9, constraint=CONSTRAINT), "r")
    drafter.submit(opening("u", GREEDY, 9), "r")
    drafter.submit(proposing("c", 1, prompt, 3), "r")
    drafter.submit(proposing("u", 1, prompt, 5), "r")
    by_id = {reply.session_id: reply for reply in drain(drafter)}
    assert [token % 3 for token in by_id["c"].tokens] == [0, 1, 2]
    assert by_id["u"].tokens == reference_greedy(prompt, 5)
    assert counts == [2, 2, 2, 1, 1]


def test_a_deadline_bounds_the_chain(monkeypatch: pytest.MonkeyPatch):
    clock = FakeClock()
    drafter = engine(chains=True, clock=clock)
    counts = count_passes(drafter.runner, monkeypatch)
    drafter._step_s = 0.010
    drafter.submit(opening("s", GREEDY, 12), "r")
    drafter.submit(proposing("s", 1, random_prompt(1, 12), 9, deadline_ms=35), "r")
    assert drafter.step() == []
    assert len(counts) == 3


@pytest.mark.parametrize(
    ("terms", "expected"),
    [
        ({}, True),
        ({"top_p": 0.5, "min_p": 0.1, "seed": 9}, True),
        ({"verification": "rejection"}, False),
        ({"verification": "rejection", "temperature": 0}, True),
        ({"presence_penalty": 0.5}, False),
        ({"frequency_penalty": 0.5}, False),
        ({"repetition_penalty": 1.1}, False),
    ],
    ids=str,
)
def test_what_needs_the_host_is_not_chained(terms: dict, expected: bool):
    drafter = engine(chains=True)
    drafter.submit(opening("s", Sampling(**terms), 12), "r")
    (session,) = drafter.sessions
    assert is_chainable(session) is expected


def test_room_for_a_chain_is_taken_from_all_or_given_back():
    pool = BlockPool(3, 4)
    links = []
    for length in (4, 3):
        table = pool.new_table()
        table.resize(length)
        links.append(ChainLink(table, 0, [0] * length, GREEDY))
    # One free block: the first takes it with its second step, the other with its third.
    assert reserve_chain(links, 5) == 2
    assert [link.table.num_tokens for link in links] == [5, 4]
    links[1].table.resize(5 - 4)
    full = pool.new_table()
    full.resize(4 * pool.num_free)
    links[0].table.resize(4)
    full.resize(full.num_tokens + 4)
    assert reserve_chain(links[:1], 5) == 1
    pool.check([full, *(link.table for link in links)])


def test_rounds_with_chains_are_the_text_of_the_target():
    target, drafter = Link(make_target()), Link(engine(chains=True, noise=0.01))
    prompts = [random_prompt(seed, 6 + 5 * seed) for seed in range(3)]
    ks = random.Random(0)
    clients = [
        Client(
            f"s{i}",
            prompt,
            GREEDY,
            24,
            target,
            drafter,
            num_draft_tokens=lambda: ks.randint(0, 6),
        )
        for i, prompt in enumerate(prompts)
    ]
    texts = run_clients(clients)
    assert texts == [reference_greedy(prompt, 24) for prompt in prompts]
