"""The limits of a recovery, each by an example; `loadtest.fuzz.failures` draws what befalls all."""

from __future__ import annotations

import asyncio
import math

import pytest

from models.protocol.errors import LinkLost, NoReplica, ReplicasLost, Unavailable
from models.protocol.messages import NeedOpen, NeedPrefix, Verify
from models.protocol.token_sequence import TokenSequence
from router.limits import SessionLimits, SpeculationLimits
from router.remote.engine import EngineClient
from router.remote.losses import Losses, PartLosses
from router.remote.recovery import Recovery
from router.remote.target import RemoteVerifier
from tests.fakes.pools import Faults, ScriptedPool
from tests.fakes.router import ScriptedEngine, continuation
from tests.fakes.sessions import OPENING, PROMPT, Front, asked

NUM_TOKENS = 12
LIMITS = SessionLimits(
    queue_wait_s=1.0,
    failover_s=5.0,
    first_token_s=0.1,
    token_gap_s=0.1,
    draft_ms=50,
    resend_interval_s=0.03,
    rejoin_interval_s=0.001,
)


async def generated(
    pool: ScriptedPool, limits: SessionLimits, losses: Losses | None = None
) -> list[int]:
    speculation = SpeculationLimits(run_on_tokens=3)
    front = Front(pool, speculation=speculation, limits=limits, losses=losses or Losses())
    ids, _ = await front.run(asked(max_tokens=NUM_TOKENS))
    return ids


async def verified(
    pool: ScriptedPool, num_rounds: int, losses: PartLosses | None = None
) -> list[int]:
    """Return the text after so many rounds of a verifier, each with two plain steps."""
    client = EngineClient(pool, OPENING, LIMITS, losses=losses)
    session, committed = RemoteVerifier(client, LIMITS), TokenSequence(PROMPT)
    for _ in range(num_rounds):
        async for verdict in session.verify(committed, [], 2):
            committed.extend([verdict.token])
    return committed.ids


async def points() -> list[str]:
    """The points that a request without any fault passes."""
    faults = Faults()
    await generated(ScriptedPool(faults=faults), LIMITS)
    return faults.names


async def test_a_running_stream_waits_longer_for_a_place_than_a_new_request() -> None:
    limits = LIMITS.model_copy(update={"queue_wait_s": 0.05, "failover_s": 20.0})
    faults = Faults({len(await points()) // 2})
    pool = ScriptedPool(faults=faults, num_refusals=60, refusal=Unavailable)
    clock = asyncio.get_running_loop().time
    started_at = clock()
    losses = Losses()
    assert await generated(pool, limits, losses) == continuation(PROMPT, NUM_TOKENS)
    assert limits.queue_wait_s < clock() - started_at < limits.failover_s

    full = ScriptedPool(refusal=Unavailable)
    full.num_refusals_left = math.inf
    with pytest.raises(
        Unavailable, match=r"^no target within the limit of 0\.05 s: target refuses"
    ):
        await generated(full, limits, losses)
    assert full.leases == []


async def test_new_requests_wait_for_a_target_to_load() -> None:
    limits = LIMITS.model_copy(update={"queue_wait_s": 0.05, "first_token_s": 0.4})
    clock = asyncio.get_running_loop().time
    started_at = clock()
    away = ScriptedPool()
    away.num_refusals_left = math.inf
    with pytest.raises(Unavailable, match=r"^no target within the limit of 0\.4 s"):
        await generated(away, limits)
    assert 0.4 <= clock() - started_at < 1.0
    loading = ScriptedPool()
    loading.num_refusals_left = 20  # some 0.1 s
    assert await generated(loading, limits) == continuation(PROMPT, NUM_TOKENS)


async def test_a_replica_that_dies_while_it_is_asked_does_not_shorten_the_wait_for_the_first() -> (
    None
):
    limits = LIMITS.model_copy(update={"queue_wait_s": 0.02, "first_token_s": 5.0})
    recovery = Recovery("constraint service", limits)
    await recovery.after(NoReplica("starting"))
    await asyncio.sleep(0.05)
    await recovery.after(LinkLost("died while it compiled"))
    assert recovery.lease_timeout_s() > 1.0


async def test_the_fail_over_limit_is_the_end() -> None:
    limits = LIMITS.model_copy(update={"failover_s": 0.3})
    names = await points()
    last = max(number for number, name in enumerate(names) if name.endswith("receive"))
    pool = ScriptedPool(faults=Faults({last}), num_refusals=math.inf)
    clock = asyncio.get_running_loop().time
    started_at = clock()
    with pytest.raises(
        Unavailable, match=r"lost once, no other was there within the limit of 0\.3 s; at last: .*"
    ) as caught:
        await generated(pool, limits)
    assert 0.8 <= caught.value.retry_after_s <= 1.2
    assert 0.3 <= clock() - started_at < 0.5
    assert [lease.is_released for lease in pool.leases] == [True]


@pytest.mark.parametrize("is_heard", [False, True], ids=["in silence", "with a last answer"])
@pytest.mark.parametrize("num_answers", [0, 1, 2], ids="kills after {} answers".format)
async def test_a_request_that_kills_its_target_is_not_tried_on_every_replica(
    num_answers: int, is_heard: bool
) -> None:
    class Doomed(ScriptedEngine):
        num_left = num_answers

        def handle(self, message):  # type: ignore[no-untyped-def]
            answers = super().handle(message)
            if isinstance(message, Verify):
                self.num_left -= 1
                if self.num_left < 0:
                    asyncio.get_running_loop().call_later(1e-3, pool.fail, "crash")
                    return answers[:1] if is_heard else []
            return answers

    pool = ScriptedPool(Doomed)
    with pytest.raises(ReplicasLost, match=r"^target lost 3 times, the limit is 3; the request w"):
        await verified(pool, 20)
    assert pool.process.epoch == 1 + LIMITS.max_losses


async def test_late_corrections_do_not_count_against_a_healthy_link() -> None:
    class Repeating(ScriptedEngine):
        """Asks for the prefix of every older message again, many times, before it answers."""

        def handle(self, message):  # type: ignore[no-untyped-def]
            replies = super().handle(message)
            if not isinstance(message, Verify):
                return replies
            late = [
                NeedOpen(session_id="s", seq=message.seq - 1, epoch=self.epoch),
                NeedPrefix(session_id="s", seq=message.seq - 1, have_len=0, have_hash=0),
            ]
            return late * 20 + replies

    pool = ScriptedPool(Repeating)
    assert await verified(pool, 5) == [*PROMPT, *continuation(PROMPT, 15)]
    assert len(pool.leases) == 1


def forgetful_pool(epochs_ahead: int = 0) -> ScriptedPool:
    """Make a pool whose engine has no session on its first lease, and names such an epoch."""

    class Forgetful(ScriptedEngine):
        num_asked = 0

        def handle(self, message):  # type: ignore[no-untyped-def]
            if isinstance(message, Verify) and len(pool.leases) == 1:
                self.num_asked += 1
                epoch = self.epoch + epochs_ahead
                return [NeedOpen(session_id="s", seq=message.seq, epoch=epoch)]
            return super().handle(message)

    pool = ScriptedPool(Forgetful)
    return pool


async def test_a_lease_that_has_ended_before_it_was_told_is_no_lost_replica() -> None:
    """The engine asks for the session whenever it is sent: it takes it on a new lease alone."""
    pool = forgetful_pool()
    limits = LIMITS.model_copy(update={"max_losses": 1})
    assert await generated(pool, limits) == continuation(PROMPT, NUM_TOKENS)
    assert (pool.process.num_asked, len(pool.leases)) == (9, 2)


async def test_an_answer_opens_a_new_window_but_no_new_count() -> None:
    recovery = Recovery("target", LIMITS.model_copy(update={"max_losses": 2, "failover_s": 60.0}))
    recovery.note_running()
    for _ in range(5):
        await recovery.after(LinkLost("idle", "ended"))  # a lease ended: no replica was lost
        recovery.note_answer()
    await recovery.after(LinkLost("gone"))
    recovery.note_answer()
    with pytest.raises(ReplicasLost, match=r"target lost 2 times, the limit is 2; .* gone"):
        await recovery.after(LinkLost("gone"))


async def test_refusals_take_time_but_are_not_losses() -> None:
    recovery = Recovery("target", LIMITS.model_copy(update={"max_losses": 1, "failover_s": 60.0}))
    recovery.note_running()
    for _ in range(10):
        await recovery.after(Unavailable("starting"))
    with pytest.raises(Unavailable, match=r"target lost once, the limit is 1; .* at last: gone"):
        await recovery.after(LinkLost("gone"))


def test_pauses_grow_up_to_a_limit() -> None:
    backoff = SessionLimits(rejoin_interval_s=0.5).backoff()
    pauses = []
    for _ in range(6):
        backoff.note_failure()
        pauses.append(backoff.pause_s)
    for pause, middle in zip(pauses, [0.5, 1.0, 2.0, 4.0, 4.0, 4.0], strict=True):
        assert pause == pytest.approx(middle, rel=0.2)


async def test_an_engine_of_another_life_at_the_address_is_a_lost_replica() -> None:
    """It says so with its first answer: nothing is asked again, and the loss is counted."""
    pool = forgetful_pool(epochs_ahead=1)
    losses = Losses().target
    assert await verified(pool, 1, losses) == [*PROMPT, *continuation(PROMPT, 3)]
    assert (pool.process.num_asked, len(pool.leases)) == (1, 2)
    assert losses.num_lost == {"gone": 1}

    pool = forgetful_pool(epochs_ahead=1)
    with pytest.raises(ReplicasLost, match=r"^target lost once, .*the engine has started anew"):
        await generated(pool, LIMITS.model_copy(update={"max_losses": 1}))
