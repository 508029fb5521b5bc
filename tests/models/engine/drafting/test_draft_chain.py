"""A chain of draft steps gives what single steps give, and leaves the engine as they would."""

from __future__ import annotations

import random
from typing import Any

import pytest

from models.engine.draft import DraftEngine
from models.engine.drafting.chain import ChainLink, is_chainable, reserve_chain
from models.grammar.masks import MaskSource, NoMaskSource
from models.kv.block_pool import BlockPool
from models.protocol.messages import Proposal, Sampling
from models.protocol.token_sequence import TokenSequence
from tests.cases.kv_tokens import num_kv_tokens
from tests.cases.messages import opening
from tests.cases.target import GREEDY, PROMPT
from tests.fakes.engines import (
    CONSTRAINT,
    EPOCH,
    Client,
    FakeClock,
    Link,
    ScriptedMasks,
    make_runner,
    make_target,
    random_prompt,
    reference_greedy,
    run_clients,
)
from tests.models.engine.asked import AskedDraft, DraftOf, rows_of_passes


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


def proposals(drafter: DraftEngine, asked: list[tuple[str, Sampling, list[int], int]]) -> dict:
    draft = AskedDraft(drafter)
    for name, sampling, prompt, k in asked:
        draft.open(name, sampling=sampling, prompt_len=len(prompt))
        draft.send(prompt, k, name=name)
    replies = draft.drain()
    assert all(isinstance(reply, Proposal) for reply in replies)
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


def test_one_engine_step_is_one_chain(draft_of: DraftOf, monkeypatch: pytest.MonkeyPatch):
    draft = draft_of(engine(chains=True))
    passes = rows_of_passes(draft.engine.runner, monkeypatch)
    draft.send(PROMPT, 6)
    (reply,) = draft.step()
    assert passes == [[12], *[[1]] * 5]
    assert reply.tokens == reference_greedy(PROMPT, 6)
    assert reply.timing.pass_ms > 0
    assert num_kv_tokens(draft.engine) == 12 + 5  # as after six single steps


def test_the_next_round_goes_on_from_a_chain(draft_of: DraftOf):
    draft = draft_of(engine(chains=True))
    text = reference_greedy(PROMPT, 9)
    assert draft.ask(PROMPT, 4).tokens == text[:4]
    assert draft.ask([*PROMPT, *text[:5]], 4, base_len=12 + 4).tokens == text[5:9]


def test_what_chains_compute_is_found_by_others(draft_of: DraftOf):
    draft = draft_of(engine(chains=True))
    text = [*PROMPT, *reference_greedy(PROMPT, 9)]
    for length in (12, 17, 21):
        draft.ask(text[:length], 3)
        # What a draft guessed is not among it: of the second round's block, its last four rows.
        assert draft.engine.load().num_cached_blocks == length // 16
    draft.ask(text, 3, name="other")
    assert draft.engine.load().prefix_hits == 16


def test_who_awaits_a_prompt_that_a_chain_computes_finds_it(monkeypatch: pytest.MonkeyPatch):
    drafter = engine(chains=True, max_num_batched_tokens=256)
    passes = rows_of_passes(drafter.runner, monkeypatch)
    prompt = random_prompt(1, 150)
    asked = [("first", GREEDY, prompt, 3), ("same", GREEDY, prompt, 3)]
    drafted = proposals(drafter, asked)
    assert drafted["first"].tokens == drafted["same"].tokens
    assert list(map(len, passes)) == [1] * 6
    assert drafter.load().prefix_hits == 144


def test_a_full_pool_shortens_the_chain(monkeypatch: pytest.MonkeyPatch):
    drafter = engine(chains=True, kv_cache_tokens=32)
    passes = rows_of_passes(drafter.runner, monkeypatch)
    reply = proposals(drafter, [("s", GREEDY, random_prompt(3, 30), 6)])["s"]
    expected = reference_greedy(random_prompt(3, 30), 6)
    assert reply.tokens == expected[: len(reply.tokens)]
    assert (len(reply.tokens), reply.cut) == (3, "context")
    assert len(passes) == 3


def test_constrained_sessions_are_drafted_step_by_step(
    draft_of: DraftOf, monkeypatch: pytest.MonkeyPatch
):
    masks = ScriptedMasks()
    masks.committed["c"] = TokenSequence()
    draft = draft_of(engine(chains=True, masks=masks))
    passes = rows_of_passes(draft.engine.runner, monkeypatch)
    prompt = random_prompt(4, 9)
    draft.open("c", constraint=CONSTRAINT, prompt_len=9)
    draft.send(prompt, 3, name="c")
    draft.send(prompt, 5, name="u")
    by_id = {reply.session_id: reply for reply in draft.drain()}
    assert [token % 3 for token in by_id["c"].tokens] == [0, 1, 2]
    assert by_id["u"].tokens == reference_greedy(prompt, 5)
    assert list(map(len, passes)) == [2, 2, 2, 1, 1]


def test_a_deadline_bounds_the_chain(draft_of: DraftOf, monkeypatch: pytest.MonkeyPatch):
    draft = draft_of(engine(chains=True, clock=FakeClock()))
    passes = rows_of_passes(draft.engine.runner, monkeypatch)
    draft.engine._step_s = 0.010
    draft.send(PROMPT, 9, deadline_ms=35)
    assert draft.step() == []
    assert len(passes) == 3


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
