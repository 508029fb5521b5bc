"""A cluster that fails, on virtual time: nothing is found, a seed has one trace, mistakes are."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
from msgspec import structs

from deployments.engine import loop
from deployments.ingress.pools import ServeLease
from deployments.ingress.quarantine import Quarantine
from deployments.serve.lease_router import LeaseRouter
from deployments.serve.timed_names import avoided
from loadtest.fuzz.failures import part
from loadtest.fuzz.failures.part import simulate
from models.engine import base, sampler
from models.protocol.errors import LinkLost
from models.protocol.forced import NOTHING_FORCED
from models.protocol.messages import Verdict
from models.scheduler.sessions import Session
from router.remote import engine, exchange
from router.remote.engine import EngineClient
from router.remote.grammar import RemoteConstrainer
from router.remote.recovery import Recovery

FIRST_SEED = 20_000
Patch = pytest.MonkeyPatch


@pytest.fixture(autouse=True)
def no_logs() -> Iterator[None]:
    logging.disable(logging.ERROR)
    yield
    logging.disable(logging.NOTSET)


@pytest.mark.timeout(120)
def test_schedules_find_nothing() -> None:
    counts: Counter[str] = Counter()
    for seed in range(FIRST_SEED, FIRST_SEED + 300):
        outcome = simulate(seed)
        assert outcome.complaints == [], f"seed {seed}"
        counts += outcome.counts
    happened = ("deaths", "stops", "hangs", "pauses", "slows down", "has its clock jump")
    ends = ("stop", "length", "unavailable", "replicas_lost", "cancelled", "closed")
    links = ("lost", "doubled", "late", "refused", "end of a lease lost", "preempted")
    places = ("full", "no place")
    assert [
        what for what in (*happened, *ends, *links, *places, "accepted") if counts[what] < 5
    ] == []


def test_a_seed_has_one_trace() -> None:
    """Holds in another process too, where strings hash differently."""
    seeds = range(5)
    script = (
        "from loadtest.fuzz.failures.part import simulate\n"
        f"for seed in {list(seeds)}: print('\\n'.join(simulate(seed).trace))\n"
    )
    environment = {**os.environ, "PYTHONHASHSEED": "7"}
    other = subprocess.run(
        [sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=True
    )
    traces = [simulate(seed).trace for seed in seeds]
    assert [line for trace in traces for line in trace] == other.stdout.splitlines()
    assert traces[0] != traces[1]


# --- deliberate mistakes: each must be seen


def an_answer_resets_the_losses(patch: Patch) -> None:
    note_answer = Recovery.note_answer

    def forgetful(recovery: Any) -> None:
        note_answer(recovery)
        recovery._losses.clear()

    patch.setattr(Recovery, "note_answer", forgetful)


def losses_after_an_answer_are_never_looked_at(patch: Patch) -> None:
    patch.setattr(Recovery, "check_losses", lambda recovery: None)


def a_wait_for_a_replica_has_no_end(patch: Patch) -> None:
    patch.setattr(Recovery, "_left_s", lambda recovery: 5.0)


def an_answer_is_waited_for_for_ever(patch: Patch) -> None:
    def patient(*words: Any, **named: Any) -> exchange.Patience:
        patience = exchange.Patience(*words, **named)
        return exchange.Patience(1e9, patience.resend_interval_s, patience.queue_limit_s)

    patch.setattr(engine, "Patience", patient)


def late_answers_are_taken(patch: Patch) -> None:
    news = engine.__dict__["_news"]
    patch.setattr(engine, "_news", lambda seq, part, reply: news(reply.seq, part, reply))


def parts_are_taken_as_they_come(patch: Patch) -> None:
    news = engine.__dict__["_news"]

    def next_news(seq: int, next_part: int, reply: Any) -> Any:
        found = news(seq, next_part, reply)
        if isinstance(found, Verdict):
            return structs.replace(found, part=next_part)
        return found

    patch.setattr(engine, "_news", next_news)


def a_lost_lease_is_kept(patch: Patch) -> None:
    async def disconnect(client: Any) -> None:
        client._lease, client._is_open, client.agreed_len = None, False, 0

    patch.setattr(EngineClient, "disconnect", disconnect)


def a_lease_is_released_on_paper(patch: Patch) -> None:
    async def release(lease: Any) -> None:
        lease.channel.close()

    patch.setattr(ServeLease, "release", release)


def a_rollback_keeps_the_cache(patch: Patch) -> None:
    patch.setattr(Session, "_forget_rows", lambda session, start: None)


def without_a_mask_everything_is_allowed(patch: Patch) -> None:
    patch.setattr(base, "is_drawable", lambda job: job.logits is not None)
    patch.setattr(sampler, "is_drawable", lambda job: job.logits is not None)


def a_session_outlives_its_lease(patch: Patch) -> None:
    patch.setattr(loop.EngineLoop, "_close_freed", lambda driver: None)


def a_commit_is_not_replayed(patch: Patch) -> None:
    async def replay(constrainer: Any, lease: Any, generated: Any, base_len: int) -> Any:
        return NOTHING_FORCED

    patch.setattr(RemoteConstrainer, "_replay", replay)


def a_retry_may_lose_more(patch: Patch) -> None:
    patch.setattr(Quarantine, "keep", lambda quarantine, request: None)


def a_full_replica_counts_as_a_lost_one(patch: Patch) -> None:
    after = Recovery.after

    async def counting(recovery: Recovery, error: Any) -> None:
        await after(recovery, LinkLost(error.message))

    patch.setattr(Recovery, "after", counting)


def nobody_knows_that_replicas_are_full(patch: Patch) -> None:
    patch.setattr(part, "FULL_S", 0.0)  # a class that Serve has pickled keeps its own functions


def an_avoided_replica_gets_no_lease_although_all_others_are_full(patch: Patch) -> None:
    choose = LeaseRouter.choose_replicas

    async def without_last(router: Any, **words: Any) -> Any:
        chosen, names = await choose(router, **words), avoided().names()
        return [
            some for some in chosen if {one.replica_id.unique_id for one in some} - {*names}
        ] or chosen

    patch.setattr(LeaseRouter, "choose_replicas", without_last)


MISTAKES = [
    an_answer_resets_the_losses,
    losses_after_an_answer_are_never_looked_at,
    a_wait_for_a_replica_has_no_end,
    an_answer_is_waited_for_for_ever,
    late_answers_are_taken,
    parts_are_taken_as_they_come,
    a_lost_lease_is_kept,
    a_lease_is_released_on_paper,
    a_rollback_keeps_the_cache,
    without_a_mask_everything_is_allowed,
    a_session_outlives_its_lease,
    a_commit_is_not_replayed,
    a_retry_may_lose_more,
    a_full_replica_counts_as_a_lost_one,
    nobody_knows_that_replicas_are_full,
    an_avoided_replica_gets_no_lease_although_all_others_are_full,
]


@pytest.mark.timeout(120)
@pytest.mark.parametrize("mistake", MISTAKES, ids=lambda mistake: mistake.__name__)
def test_a_mistake_is_seen(mistake: Any) -> None:
    with Patch.context() as patch:
        mistake(patch)
        seeds = range(FIRST_SEED, FIRST_SEED + 300)
        found = next((seed for seed in seeds if simulate(seed).complaints), None)
        assert found is not None
    assert simulate(found).complaints == [], "it is gone without the mistake"
