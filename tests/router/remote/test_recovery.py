"""Replicas lost at every point of a request, once and again: the same text, or a clear error."""

from __future__ import annotations

import asyncio
import math
from dataclasses import dataclass

import pytest

from models.protocol.errors import LinkLost, ReplicasLost, Unavailable
from models.protocol.messages import Grammar, NeedOpen, NeedPrefix, Sampling, Verify
from models.protocol.token_sequence import TokenSequence
from router.drafters.draft_model import POOL
from router.generator import SpeculativeGenerator
from router.limits import SessionLimits, SpeculationLimits
from router.remote.engine import EngineClient, OpenTemplate
from router.remote.recovery import Recovery
from router.remote.target import RemoteVerifier
from router.services import Services
from router.types import Delta, Finished, GenerationRequest, SpeculationSettings
from tests.fakes.recovery import Fault, Faults, FaultyPool, MaskedEngine, ScriptedMatchers
from tests.fakes.router import LetterDetokenizer, ScriptedEngine, continuation

PROMPT = (5, 9, 2)
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


@dataclass
class Deployment:
    """A router over three pools that may fail."""

    target: FaultyPool
    draft: FaultyPool
    constraint: FaultyPool
    limits: SessionLimits

    async def generate(self, *, k: int, is_constrained: bool = True) -> list[int]:
        request = GenerationRequest(
            request_id="s",
            prompt_ids=PROMPT,
            sampling=Sampling(),
            eos_ids=(0,),
            max_tokens=NUM_TOKENS,
            grammar=Grammar(kind="json_schema", text="{}") if is_constrained else None,
            speculation=SpeculationSettings(num_speculative_tokens=k),
        )
        services = Services(
            target_pool=self.target,
            draft_pools={POOL: self.draft},
            constraint_pool=self.constraint,
            speculation=SpeculationLimits(run_on_tokens=3),
            limits=self.limits,
        )
        ids: list[int] = []
        is_finished = False
        async with asyncio.timeout(60):
            front = SpeculativeGenerator(services, max_model_len=100)
            async for event in front.generate(request, LetterDetokenizer()):
                assert not is_finished
                if isinstance(event, Delta):
                    ids.extend(event.token_ids)
                    for _ in range(20):  # a scripted target is faster than any draft can join
                        await asyncio.sleep(0)
                is_finished = isinstance(event, Finished)
        assert is_finished
        return ids

    def all_released(self) -> bool:
        leases = [*self.target.leases, *self.draft.leases, *self.constraint.leases]
        return all(lease.is_released for lease in leases)


def deploy(
    faults: Faults, limits: SessionLimits = LIMITS, *, num_refusals: float = 2
) -> Deployment:
    def matchers(epoch: int) -> ScriptedMatchers:
        return ScriptedMatchers(epoch, PROMPT, NUM_TOKENS)

    def current() -> ScriptedMatchers:
        assert isinstance(constraint.process, ScriptedMatchers)
        return constraint.process

    constraint = FaultyPool("constraint", matchers, faults, num_refusals=num_refusals)
    target, draft = (
        FaultyPool(
            name,
            lambda epoch, name=name: MaskedEngine(name, epoch, current),  # type: ignore[misc]
            faults,
            num_refusals=num_refusals,
        )
        for name in ("target", "draft")
    )
    return Deployment(target, draft, constraint, limits)


async def points_of(k: int, pools: tuple[str, ...]) -> list[str]:
    """The points that a request without any fault passes."""
    faults = Faults(pools=pools)
    await deploy(faults).generate(k=k)
    return faults.names


def last_receive(names: list[str]) -> int:
    """The last point at which a loss can be noticed: what follows frees the session."""
    return max(number for number, name in enumerate(names) if name.endswith("receive"))


POOLS = ("target", "constraint", "draft")


@pytest.mark.parametrize("kind", ["crash", "stop"])
@pytest.mark.parametrize("k", [0, 3])
@pytest.mark.parametrize("pool", POOLS)
async def test_one_loss_at_any_point_changes_nothing(pool: str, k: int, kind: Fault) -> None:
    names = await points_of(k, (pool,))
    assert (pool == "draft" and k == 0) or len(names) > 10
    # A stop costs its timeout each time: every third point is enough, the rest are crashed at.
    for number in range(0, len(names), 1 if kind == "crash" else 3):
        faults = Faults({number}, kind, (pool,))
        deployment = deploy(faults)
        ids = await deployment.generate(k=k)
        assert ids == continuation(PROMPT, NUM_TOKENS), f"{kind} at {number}, {names[number]}"
        assert faults.num_struck == 1
        assert deployment.all_released()
        if pool != "target":
            assert len(deployment.target.leases) == 1, "a healthy target keeps its lease"


@pytest.mark.parametrize("victim", POOLS)
async def test_a_loss_while_others_are_asked_changes_nothing(victim: str) -> None:
    """Masks are lost so, for one: the target is asked when the matcher's replica has just died."""
    names = await points_of(3, POOLS)
    for number in range(len(names)):
        faults = Faults({number})
        deployment = deploy(faults)
        faults.victim = getattr(deployment, victim)
        assert await deployment.generate(k=3) == continuation(PROMPT, NUM_TOKENS)
        assert deployment.all_released()


@pytest.mark.parametrize("gap", [1, 2, 5])
@pytest.mark.parametrize("pools", [("target",), ("constraint",), POOLS], ids=lambda p: p[-1])
async def test_three_losses_close_together_change_nothing(pools: tuple[str, ...], gap: int) -> None:
    names = await points_of(3, pools)
    for number in range(0, len(names) - 2 * gap):
        faults = Faults({number, number + gap, number + 2 * gap}, "crash", pools)
        deployment = deploy(faults, LIMITS.model_copy(update={"max_losses": 4}))
        ids = await deployment.generate(k=3)
        assert ids == continuation(PROMPT, NUM_TOKENS), f"from {number}, {names[number]}"
        assert faults.num_struck >= 2
        assert deployment.all_released()


@pytest.mark.parametrize("kind", ["crash", "stop"])
@pytest.mark.parametrize(
    ("pool", "message"),
    [
        ("target", r"target lost 3 times, the limit is 3; the request was with each .*; at last"),
        ("constraint", r"constraint service lost \d times, the limit is 3; .*; at last"),
    ],
)
async def test_what_is_lost_again_and_again_ends_with_a_clear_error(
    pool: str, message: str, kind: Fault
) -> None:
    for number in range(0, last_receive(await points_of(3, (pool,))), 4):
        deployment = deploy(Faults(range(number, 10**6), kind, (pool,)), num_refusals=0)
        with pytest.raises(Unavailable, match=message):
            await deployment.generate(k=3)
        assert deployment.all_released()


async def test_a_draft_that_is_lost_for_ever_costs_only_speed() -> None:
    deployment = deploy(Faults(range(4, 10**6), "crash", ("draft",)))
    assert await deployment.generate(k=3) == continuation(PROMPT, NUM_TOKENS)
    assert deployment.all_released()


async def test_a_running_stream_waits_longer_for_a_replica_than_a_new_request() -> None:
    limits = LIMITS.model_copy(update={"queue_wait_s": 0.05, "failover_s": 20.0})
    names = await points_of(0, ("target",))
    middle = len(names) // 2
    deployment = deploy(Faults({middle}, "crash", ("target",)), limits, num_refusals=60)
    clock = asyncio.get_running_loop().time
    started_at = clock()
    assert await deployment.generate(k=0) == continuation(PROMPT, NUM_TOKENS)
    assert limits.queue_wait_s < clock() - started_at < limits.failover_s

    refusing = deploy(Faults(), limits)
    refusing.target.num_refusals_left = math.inf
    with pytest.raises(Unavailable, match=r"^no target within the limit of 0\.05 s: target is st"):
        await refusing.generate(k=0)
    assert refusing.all_released()


@pytest.mark.parametrize("pool", ["target", "constraint"])
async def test_the_fail_over_limit_is_the_end(pool: str) -> None:
    limits = LIMITS.model_copy(update={"failover_s": 0.3})
    number = last_receive(await points_of(0, (pool,)))
    deployment = deploy(Faults({number}, "crash", (pool,)), limits, num_refusals=math.inf)
    clock = asyncio.get_running_loop().time
    started_at = clock()
    with pytest.raises(
        Unavailable, match=r"lost once, no other was there within the limit of 0\.3 s; at last: .*"
    ) as caught:
        await deployment.generate(k=0)
    assert 0.8 <= caught.value.retry_after_s <= 1.2
    assert 0.3 <= clock() - started_at < 0.5
    assert len(deployment.target.leases) == 1
    assert deployment.all_released()


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

    pool = FaultyPool("target", Doomed, Faults(), num_refusals=0)
    opening = OpenTemplate(session_id="s", sampling=Sampling(), eos_ids=(0,), prompt_len=3)
    session = RemoteVerifier(EngineClient(pool, opening, LIMITS), LIMITS)
    committed = TokenSequence(PROMPT)

    async def run() -> None:
        for _ in range(20):
            async for verdict in session.verify(committed, [], 2):
                committed.extend([verdict.token])

    with pytest.raises(ReplicasLost, match=r"^target lost 3 times, the limit is 3; the request w"):
        await run()
    assert pool.process.epoch == 1 + LIMITS.max_losses


async def test_late_corrections_do_not_count_against_a_healthy_link() -> None:
    class Repeating(ScriptedEngine):
        """Asks for the prefix of every older message again, many times, before it answers."""

        def handle(self, message):  # type: ignore[no-untyped-def]
            replies = super().handle(message)
            if not isinstance(message, Verify):
                return replies
            late = [
                NeedOpen(session_id="s", seq=message.seq - 1),
                NeedPrefix(session_id="s", seq=message.seq - 1, have_len=0, have_hash=0),
            ]
            return late * 20 + replies

    target = FaultyPool("target", Repeating, Faults())
    opening = OpenTemplate(session_id="s", sampling=Sampling(), eos_ids=(0,), prompt_len=3)
    session = RemoteVerifier(EngineClient(target, opening, LIMITS), LIMITS)
    committed = TokenSequence(PROMPT)
    for _ in range(5):
        async for verdict in session.verify(committed, [], 2):
            committed.extend([verdict.token])
    assert committed.ids == [*PROMPT, *continuation(PROMPT, 15)]
    assert len(target.leases) == 1


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
