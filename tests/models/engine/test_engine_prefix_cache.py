"""Both engines with a prefix cache: what is computed once, and that no text depends on it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import pytest

from models.engine.base import Engine
from models.engine.draft import DraftEngine
from models.engine.target import TargetEngine
from models.grammar.masks import NoMaskSource
from models.protocol.messages import EngineReply, Proposal, Sampling, Verdict
from tests.cases.messages import EPOCH, opening, proposing, verifying
from tests.fakes.engines import (
    BLOCK,
    CONSTRAINT,
    Client,
    Link,
    ScriptedMasks,
    drain,
    make_draft,
    make_runner,
    make_target,
    random_prompt,
    reference_greedy,
    run_clients,
)
from tests.harness.kv_memory import last_keys
from tests.models.engine.asked import rows_of_passes

pytestmark = pytest.mark.every_engine

GREEDY = Sampling(temperature=0)
SYSTEM = random_prompt(100, 1500)
CHATS = [SYSTEM + random_prompt(200 + i, 20) for i in range(10)]
NUM_SHARED = 1490 // BLOCK * BLOCK  # tokens of the system prompt in whole blocks
ROOMY = {"max_model_len": 1600, "kv_cache_tokens": 32_000, "max_num_batched_tokens": 512}
NUM_DRAFTED = 3


class Watched:
    """An engine, and how many rows it computed."""

    def __init__(
        self, patch: pytest.MonkeyPatch, make: Callable[..., Engine], **limits: int
    ) -> None:
        self.engine = make(**limits)
        self.passes = rows_of_passes(self.engine.runner, patch)

    @property
    def num_rows(self) -> int:
        return sum(map(sum, self.passes))

    def submit(
        self, name: str, ids: Sequence[int], *, seq: int = 1, draft: Sequence[int] = (), **terms
    ) -> None:
        """Open a session, if it is not open, and have it drafted for or verified."""
        run_on = terms.pop("run_on", 0)
        self.engine.submit(opening(name, GREEDY, len(ids), **terms), "r")
        if isinstance(self.engine, DraftEngine):
            self.engine.submit(proposing(name, seq, ids, NUM_DRAFTED), "r")
        else:
            self.engine.submit(verifying(name, seq, ids, draft, run_on=run_on), "r")

    def drain(self) -> list[EngineReply]:
        replies = drain(self.engine)
        self.check()
        return replies

    def ask(self, name: str, ids: Sequence[int], **terms) -> list[EngineReply]:
        self.submit(name, ids, **terms)
        return self.drain()

    def check(self) -> None:
        tables = self.engine.block_tables()
        self.engine.runner.pool.check(tables)
        self.engine._prefix_cache.published.check(tables)


MAKERS = pytest.mark.parametrize("make", [make_target, make_draft])


def text_of(reply: EngineReply) -> list[int]:
    return list(reply.tokens) if isinstance(reply, Proposal) else [reply.token]


def rows_of(num_prefill: int, make: Callable[..., Engine]) -> int:
    """With the steps behind the first drafted token."""
    return num_prefill + (NUM_DRAFTED - 1 if make is make_draft else 0)


@MAKERS
@pytest.mark.parametrize("together", [False, True], ids=["one by one", "together"])
def test_ten_chats_over_one_system_prompt_compute_it_once(monkeypatch, make, together):
    watched = Watched(monkeypatch, make, **ROOMY)
    replies: list[EngineReply] = []
    for i, chat in enumerate(CHATS):
        watched.submit(f"s{i}", chat)
        if not together:
            replies += watched.drain()
            expected = len(chat) if i == 0 else len(chat) - NUM_SHARED
            assert watched.num_rows == rows_of(expected, make)
            watched.passes.clear()
            if i % 2:
                watched.engine.close(f"s{i}")
    if together:
        replies = watched.drain()
        assert watched.num_rows == len(CHATS[0]) + 9 * (len(CHATS[0]) - NUM_SHARED) + 10 * rows_of(
            0, make
        )
    load = watched.engine.load()
    assert load.prefix_queries == 10 * len(CHATS[0])
    assert load.prefix_hits == 9 * NUM_SHARED
    assert load.num_cached_blocks > NUM_SHARED // BLOCK
    if make is make_target:
        cached = sorted(reply.num_cached_tokens for reply in replies)
        assert cached == [0] + 9 * [NUM_SHARED]
    watched = Watched(monkeypatch, make, **ROOMY, enable_prefix_caching=False)
    plain: list[EngineReply] = []
    for i, chat in enumerate(CHATS[:3]):
        plain += watched.ask(f"s{i}", chat)
        watched.engine.close(f"s{i}")
    by_name = {reply.session_id: text_of(reply) for reply in replies}
    assert {reply.session_id: text_of(reply) for reply in plain}.items() <= by_name.items()
    assert watched.engine.load().prefix_queries == 0


@MAKERS
def test_who_comes_during_the_prefill_waits_for_what_is_being_computed(monkeypatch, make):
    watched = Watched(monkeypatch, make, **(ROOMY | {"max_num_batched_tokens": 1024}))
    watched.submit("first", CHATS[0])
    watched.engine.step()
    assert watched.num_rows == 1024
    watched.submit("second", CHATS[1])
    watched.engine.step()
    assert watched.num_rows == len(CHATS[0])  # there would have been room for more rows
    watched.drain()
    assert watched.num_rows == rows_of(len(CHATS[0]), make) + rows_of(
        len(CHATS[1]) - NUM_SHARED, make
    )


def test_the_next_turn_finds_the_answer_as_well(monkeypatch):
    watched = Watched(monkeypatch, make_target)
    prompt = random_prompt(7, 40)
    answer = [reply.token for reply in watched.ask("turn-1", prompt, run_on=41)]
    watched.engine.close("turn-1")
    watched.passes.clear()
    question = [*prompt, *answer, *random_prompt(8, 10)]
    (verdict,) = watched.ask("turn-2", question)
    # All of prompt and answer but the last token, which no pass has read: 81 tokens.
    num_cached = 81 // BLOCK * BLOCK
    assert verdict.num_cached_tokens == num_cached
    assert watched.num_rows == len(question) - num_cached
    assert verdict.token == reference_greedy(question, 1)[0]


def test_the_draft_models_cache_lags_and_catches_up(monkeypatch):
    watched = Watched(monkeypatch, make_draft)
    prompt = random_prompt(7, 40)
    watched.ask("turn-1", prompt)
    longer = prompt + random_prompt(9, 30)
    watched.ask("turn-1", longer, seq=2)
    watched.engine.close("turn-1")
    watched.passes.clear()
    watched.ask("turn-2", longer + random_prompt(10, 30))
    assert watched.num_rows == rows_of(100 - 64, make_draft)


def test_drafted_tokens_are_not_found(monkeypatch):
    prompt = random_prompt(7, 40)
    truth = reference_greedy(prompt, 2)
    wrong = [truth[0], *random_prompt(11, 29)]
    watched = Watched(monkeypatch, make_target)
    (verdict,) = watched.ask("guess", prompt, draft=wrong)
    assert verdict.num_accepted < 20
    (verdict,) = watched.ask("other", [*prompt, *wrong])
    assert verdict.num_cached_tokens == 32
    watched = Watched(monkeypatch, make_draft)
    first = random_prompt(7, 2 * BLOCK - 1)  # its last block would be full with what is drafted
    (proposal,) = watched.ask("guess", first)
    watched.passes.clear()
    watched.ask("other", [*first, *proposal.tokens])
    assert watched.num_rows == rows_of(len(first) + NUM_DRAFTED - BLOCK, make_draft)


def test_salts_and_disabled_caches_share_nothing(monkeypatch):
    watched = Watched(monkeypatch, make_target)
    prompt = random_prompt(7, 40)
    for name, salt, num_cached in (("a", "x", 0), ("b", "", 0), ("c", "x", 32), ("d", "y", 0)):
        (verdict,) = watched.ask(name, prompt, cache_salt=salt)
        assert verdict.num_cached_tokens == num_cached
        assert verdict.token == reference_greedy(prompt, 1)[0]


def test_a_preempted_session_finds_what_was_not_evicted(monkeypatch):
    watched = Watched(monkeypatch, make_target, kv_cache_tokens=8 * BLOCK)
    old, young = random_prompt(1, 10), random_prompt(2, 4 * BLOCK + 6)
    watched.submit("old", old)
    watched.submit("young", young)
    first = {reply.session_id: reply.token for reply in watched.drain()}
    grown = old + random_prompt(3, 4 * BLOCK - 4)
    watched.ask("old", grown, seq=2)  # five blocks, of the eight: "young" had five
    load = watched.engine.load()
    assert (load.num_preemptions, load.prefix_evictions) == (1, 1)
    watched.engine.close("old")
    watched.passes.clear()
    (verdict,) = watched.ask("young", [*young, first["young"]], seq=2)
    assert verdict.num_cached_tokens == 3 * BLOCK
    assert watched.num_rows == len(young) + 1 - 3 * BLOCK
    assert verdict.token == reference_greedy([*young, first["young"]], 1)[0]


def test_what_is_not_finite_is_not_published(monkeypatch):
    watched = Watched(monkeypatch, make_target)
    runner, engine = watched.engine.runner, watched.engine
    watched.submit("bad", random_prompt(7, 40))
    watched.submit("good", random_prompt(8, 40))
    tables = engine.block_tables()
    keys = last_keys(runner)
    forward = runner.forward

    def break_a_row(sequences):
        logits = forward(sequences)
        keys[tables[0].block_ids[1], 0, 0, 2] = float("nan")
        return logits

    monkeypatch.setattr(runner, "forward", break_a_row)
    watched.drain()
    assert not runner.are_finite(tables[0].block_ids[:2])
    assert runner.are_finite([*tables[0].block_ids[:1], *tables[1].block_ids[:2]])
    assert engine.load().num_cached_blocks == 2
    runner.backend.storage.clear_blocks(
        tables[0].block_ids
    )  # the storage is that of other tests as well


SAMPLINGS = [GREEDY, Sampling(seed=5), Sampling(seed=6, verification="rejection")]


def _commit(sources: list[ScriptedMasks], name: str, tokens: list[int]) -> None:
    for source in sources:
        if name in source.committed:
            source.committed[name].extend(tokens)


@pytest.mark.parametrize("constrained", [False, True], ids=["free", "constrained"])
@pytest.mark.parametrize("k", [0, 4])
@pytest.mark.parametrize("sampling", SAMPLINGS, ids=["greedy", "seeded", "rejection"])
def test_a_hit_changes_no_text(sampling, k, constrained):
    system = random_prompt(50, 60)
    texts = []
    for enabled in (True, False):
        sources = [ScriptedMasks(), ScriptedMasks()]
        limits = {"enable_prefix_caching": enabled, "kv_cache_tokens": 512}
        target, draft = make_target(sources[0], **limits), make_draft(sources[1], **limits)
        links = Link(target), Link(draft)
        found: list[list[int]] = []
        for first in (0, 2):  # two sessions together, then two that find their blocks
            clients = []
            for i in (first, first + 1):
                name = f"s{i}"
                clients.append(
                    Client(
                        name,
                        system + random_prompt(60 + i % 2, 5),
                        sampling,
                        20,
                        *links,
                        num_draft_tokens=lambda: k,
                        run_on=lambda: 0 if k else 3,
                        constraint=CONSTRAINT if constrained else None,
                        eos_ids=[255],
                        on_commit=partial(_commit, sources, name),
                    )
                )
            found += run_clients(clients)
            assert not any(client.failures for client in clients)
        texts.append(found)
        hits = [engine.load().prefix_hits for engine in (target, draft)]
        num_found = 3 * (60 // BLOCK * BLOCK)
        assert (hits[0] >= num_found) == enabled
        assert (hits[1] >= num_found) == (enabled and k > 0)
    assert texts[0] == texts[1]
    assert texts[0][:2] == texts[0][2:]
    assert all(isinstance(verdict, Verdict) for client in clients for verdict in client.verdicts)


def test_a_second_engine_with_a_prefix_cache_on_a_runner_is_refused_while_the_first_is_there():
    runner = make_runner()
    first = TargetEngine(runner, NoMaskSource(), EPOCH)
    with pytest.raises(ValueError, match="prefix cache of another engine"):
        TargetEngine(runner, NoMaskSource(), EPOCH)
    del first
    TargetEngine(runner, NoMaskSource(), EPOCH)


def test_engines_without_a_prefix_cache_may_follow_one_another_on_a_runner():
    runner = make_runner(enable_prefix_caching=False)
    engines = [TargetEngine(runner, NoMaskSource(), EPOCH) for _ in range(2)]
    assert len(engines) == 2
