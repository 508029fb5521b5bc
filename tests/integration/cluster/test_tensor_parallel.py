"""Real Serve with models shared by rank processes: same text, and the loss of any of them.

One model has a spare, which takes over.

Leases are opened and dropped in crowds here as well, because that is what once killed replicas.
"""

import asyncio
import contextlib
import dataclasses
import os
import random
import signal
import subprocess
import time
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest
import ray
import torch
from ray import serve
from ray.exceptions import RayError
from transformers import LlamaForCausalLM

from deployments.app import bind_engine
from deployments.config.sections.models import LinkConfig, ModelConfig
from deployments.engine.rank_group import RankGroup
from deployments.ingress.pools import engine_pool
from deployments.link.client import LinkChannel, LinkClient
from models.protocol.errors import LinkLost, Unavailable
from models.protocol.messages import (
    EngineReply,
    EngineRequest,
    LeaseGrant,
    Open,
    Sampling,
    Verdict,
    Verify,
)
from router.ports import EngineLease
from tests.harness.held_services import HeldService
from tests.harness.private_serve import applications
from tests.harness.runs import engines

pytestmark = [
    pytest.mark.ray,
    pytest.mark.slow,
    pytest.mark.timeout(600),
    pytest.mark.usefixtures("bare_serve"),
]

WAIT_S = 90.0
PROMPT = [11, 12, 13, 14]
NUM_TOKENS = 12
STALL_TIMEOUT_S = WAIT_S  # who is stopped is killed long before
LEASE_IDLE_TIMEOUT_S = 5.0
LINK = LinkConfig(host="loopback")


@pytest.fixture(scope="module")
def model_path(make_tiny_llama: Callable[..., str]) -> str:
    size = engines.head_dim()
    return make_tiny_llama(seed=1, num_key_value_heads=4, head_dim=size, hidden_size=4 * size)


@pytest.fixture(scope="module")
def expected(model_path: str) -> list[int]:
    """What `transformers.generate` makes of the prompt in one process."""
    model: Any = LlamaForCausalLM.from_pretrained(model_path, dtype=torch.float32)
    ids = torch.tensor([PROMPT])
    output = model.generate(
        ids,
        attention_mask=torch.ones_like(ids),
        max_new_tokens=NUM_TOKENS,
        do_sample=False,
        pad_token_id=0,
        eos_token_id=None,
    )
    return output[0, len(PROMPT) :].tolist()


def model(path: str, **overrides: Any) -> ModelConfig:
    fields: dict[str, Any] = {
        "model_path": path,
        "dtype": "float32",
        "max_model_len": 256,
        "kv_cache_tokens": 2048,
        "max_num_seqs": 64,
        "tensor_parallel_size": 2,
        "lease_idle_timeout_s": LEASE_IDLE_TIMEOUT_S,
        "stall_timeout_s": STALL_TIMEOUT_S,
        **engines.settings(),
    }
    return ModelConfig(**(fields | overrides))


@pytest.fixture(scope="module")
def cluster(held: HeldService, model_path: str) -> Iterator[None]:
    held.get("bare_serve")
    app = bind_engine("Target", "target", model(model_path), LINK)
    with applications({"target": app}):
        yield


@pytest.fixture
async def links(cluster: None) -> AsyncIterator[LinkClient]:
    client = LinkClient()
    yield client
    await client.close()


def handle(name: str = "Target") -> Any:
    return serve.get_deployment_handle(name, name.lower())


@dataclass
class Held:
    """A lease without Serve."""

    grant: LeaseGrant
    channel: LinkChannel[EngineRequest, EngineReply]


async def text_of(
    lease: EngineLease | Held, session_id: str, seq: int = 1, own_length: int = 0
) -> list[int]:
    """The target's own text on PROMPT; it may draft so many tokens at a time itself."""
    header: dict[str, Any] = {"session_id": session_id, "epoch": lease.grant.endpoint.epoch}
    lease.channel.send(
        Open(**header, sampling=Sampling(temperature=0), eos_ids=[], prompt_len=len(PROMPT))
    )
    lease.channel.send(
        Verify(
            **header,
            seq=seq,
            base_len=0,
            prefix_hash=0,
            tokens=PROMPT,
            draft=[],
            run_on=NUM_TOKENS - 1,
            own_drafts=own_length > 0,
            own_length=own_length,
        )
    )
    tokens: list[int] = []
    while len(tokens) < NUM_TOKENS:
        async with asyncio.timeout(WAIT_S):
            verdict = await lease.channel.receive()
        assert isinstance(verdict, Verdict), verdict
        if verdict.seq == seq:
            assert verdict.part == 0 or verdict.num_own_drafted == own_length
            tokens += [*verdict.own, verdict.token]
    return tokens[:NUM_TOKENS]


async def stats_become(**wanted: Any) -> None:
    deadline = time.monotonic() + WAIT_S
    while True:
        stats = await handle().stats.remote()
        if stats.items() >= wanted.items():
            return
        assert time.monotonic() < deadline, f"{stats} never became {wanted}"
        await asyncio.sleep(0.05)


def is_gone(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


async def gone(pids: list[int]) -> None:
    """Wait until none of these processes is left."""
    deadline = time.monotonic() + WAIT_S
    while left := [pid for pid in pids if not is_gone(pid)]:
        assert time.monotonic() < deadline, f"left: {left}"
        await asyncio.sleep(0.05)


@pytest.mark.every_engine
async def test_ranks_write_the_text_of_one_process(links: LinkClient, expected: list[int]) -> None:
    lease = await engine_pool(handle(), links).lease("a", timeout_s=WAIT_S)
    assert await text_of(lease, "a") == expected
    pids = await handle().rank_pids.remote()
    assert len(set(pids)) == 2
    assert lease.grant.max_model_len == 256
    await lease.release()
    await stats_become(num_leases=0, num_sessions=0, num_used_blocks=0)


@pytest.mark.every_engine
async def test_crowds_of_dropped_leases_lose_nothing(links: LinkClient) -> None:
    """Leases dropped before, while and after they are granted, 24 at a time."""
    pids = await handle().rank_pids.remote()
    pool = engine_pool(handle(), links)
    choose = random.Random(0)
    begun = asyncio.Semaphore(24)

    async def open_and_drop(number: int) -> None:
        async with begun:
            patience_s = choose.choice([0.005, 0.02, 0.05, WAIT_S])
            try:
                lease = await pool.lease(f"crowd-{number}", timeout_s=patience_s)
            except Unavailable:
                return
            await lease.release()

    await asyncio.gather(*(open_and_drop(number) for number in range(200)))
    await stats_become(num_leases=0, num_sessions=0)
    assert await handle().rank_pids.remote() == pids, "the replica did not survive"


async def test_lease_of_a_dead_router_ends(links: LinkClient) -> None:
    @ray.remote(num_cpus=0)
    class DeadlyRouter:
        async def hold(self, session_id: str) -> int:
            self.links = LinkClient()
            self.lease = await engine_pool(handle(), self.links).lease(session_id, timeout_s=WAIT_S)
            return os.getpid()

    router: Any = DeadlyRouter.remote()  # type: ignore[attr-defined]  # Ray's decorator is untyped
    pid = await router.hold.remote("widow")
    await stats_become(num_leases=1, num_sessions=1)
    os.kill(pid, signal.SIGKILL)
    await stats_become(num_leases=0, num_sessions=0)


@pytest.mark.parametrize("own_length", [0, 2], ids=["plain", "early exit"])
async def test_a_pass_that_hangs_loses_the_group(
    links: LinkClient, model_path: str, expected: list[int], own_length: int
) -> None:
    """The follower's process is stopped, but only the pass has a short limit here."""
    limits: dict[str, Any] = {"stall_timeout_s": WAIT_S, "step_timeout_s": 2.0}
    served = model(model_path, **limits, early_exit=1 if own_length else None)
    group = RankGroup("target", served, LINK)
    try:
        grant = (await group.start())[0].grant
        assert grant is not None
        watch = asyncio.create_task(group.watch())
        await group.leader.admit.remote("h", links.public_key)
        lease = Held(grant, links.channel(grant.endpoint, "h", EngineReply))
        assert await text_of(lease, "h", own_length=own_length) == expected
        follower = psutil.Process(group.pids[1])
        for watchdog in follower.children():
            watchdog.suspend()
        follower.suspend()
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(1.0):
                await text_of(lease, "h", seq=2, own_length=own_length)
        assert not watch.done()
        async with asyncio.timeout(WAIT_S):
            reason = await watch
        print(reason)
        assert "rank 0" in reason, "the leader's pass is what fails"
    finally:
        pids = group.pids
        group.kill()
    await gone(pids)


async def test_a_rank_found_dead_gets_no_signal(cluster: None, model_path: str) -> None:
    """Its number may be given to another process before the group is ended."""
    group = RankGroup("target", model(model_path, tensor_parallel_size=1), LINK)
    with subprocess.Popen(["sleep", "60"]) as bystander:  # noqa: ASYNC220  # no pipes
        try:
            await group.start()
            os.kill(group.pids[0], signal.SIGKILL)
            async with asyncio.timeout(WAIT_S):
                assert "rank 0" in await group.watch()
            group._places = [dataclasses.replace(group._places[0], pid=bystander.pid)]
            group.kill()
            with pytest.raises(subprocess.TimeoutExpired):
                bystander.wait(0.5)
        finally:
            group.kill()
            bystander.kill()


async def test_ranks_that_cannot_load_say_why_and_leave(cluster: None, model_path: str) -> None:
    group = RankGroup("target", model(model_path, tensor_parallel_size=3), LINK)
    try:
        with pytest.raises(RayError, match="tensor_parallel_size 3: it does not divide"):
            await group.start()
    finally:
        pids = group.pids
        group.kill()
    assert len(pids) == 3
    await gone(pids)


@pytest.mark.every_engine
async def test_ranks_beside_others_serve_and_outlive_them(
    links: LinkClient, model_path: str, expected: list[int]
) -> None:
    """As where a draft model takes the place of another: two groups of two ranks."""
    first = RankGroup("target", model(model_path), LINK)
    second = RankGroup("target", model(model_path), LINK, beside=first)
    try:
        await first.start()
        grant = (await second.start())[0].grant
        assert grant is not None
        assert len({*first.pids, *second.pids}) == 4
        gone_pids = first.pids
        first.kill()
        await gone(gone_pids)
        await second.leader.admit.remote("beside", links.public_key)
        lease = Held(grant, links.channel(grant.endpoint, "beside", EngineReply))
        assert await text_of(lease, "beside") == expected
    finally:
        pids = second.pids
        first.kill()
        second.kill()
    await gone(pids)


async def test_ranks_without_room_beside_others_say_how_much_is_missing(
    cluster: None, model_path: str
) -> None:
    first = RankGroup("target", model(model_path), LINK)
    second = RankGroup("target", model(model_path, kv_cache_tokens=1 << 44), LINK, beside=first)
    try:
        await first.start()
        with pytest.raises(RayError, match=r"MB of weights and KV beside the model that serves"):
            await second.start()
    finally:
        pids = first.pids
        first.kill()
        second.kill()
    await gone(pids)


@pytest.mark.every_engine
@pytest.mark.parametrize("rank", [1, 0], ids=["follower", "leader"])
@pytest.mark.parametrize("by", [signal.SIGKILL, signal.SIGSTOP], ids=["killed", "stopped"])
async def test_losing_any_rank_replaces_the_replica(
    links: LinkClient, expected: list[int], by: signal.Signals, rank: int
) -> None:
    pool = engine_pool(handle(), links)
    lease = await pool.lease("b", timeout_s=WAIT_S)
    assert await text_of(lease, "b") == expected
    pids = await handle().rank_pids.remote()
    waiting = asyncio.create_task(lease.channel.receive())
    began_s = time.monotonic()
    os.kill(pids[rank], by)
    with pytest.raises(LinkLost):
        async with asyncio.timeout(WAIT_S):
            await waiting
    noticed_s = time.monotonic() - began_s
    if by is signal.SIGKILL:
        assert noticed_s < 5.0, "the routers must not wait for a time-out"
    await lease.release()
    await gone(pids)
    gone_s = time.monotonic() - began_s
    lease = await pool.lease("c", timeout_s=WAIT_S)
    assert await text_of(lease, "c") == expected
    back_s = time.monotonic() - began_s
    print(
        f"rank {rank}, {by.name}: noticed {noticed_s:.2f} s, gone {gone_s:.2f}, back {back_s:.1f}"
    )
    assert not set(await handle().rank_pids.remote()) & set(pids)
    await lease.release()
    await stats_become(num_leases=0, num_sessions=0)


@pytest.fixture
def spared(cluster: None, model_path: str) -> Iterator[None]:
    """A target with a spare, beside the other one."""
    sizes: dict[str, Any] = {"tensor_parallel_size": 1, "lease_idle_timeout_s": WAIT_S}
    config = model(model_path, spare=True, max_num_seqs=4, **sizes)
    with applications({"spared": bind_engine("Spared", "target", config, LINK)}):
        deadline = time.monotonic() + WAIT_S
        while _num_running("spared", "Spared") < 2:
            assert time.monotonic() < deadline, "the spare does not come"
            time.sleep(0.2)
        yield


def _num_running(application: str, deployment: str) -> int:
    found = serve.status().applications[application].deployments[deployment].replica_states
    return sum(count for state, count in found.items() if str(state) == "RUNNING")


@pytest.mark.parametrize(
    ("lost", "how"),
    [
        pytest.param("pid", signal.SIGKILL, id="coordinator"),
        pytest.param("rank_pid", signal.SIGKILL, id="rank", marks=pytest.mark.day(1)),
        pytest.param("pid", signal.SIGSTOP, id="stopped coordinator", marks=pytest.mark.day(2)),
    ],
)
async def test_a_spare_takes_over_from_a_lost_target(
    links: LinkClient, spared: None, expected: list[int], lost: str, how: signal.Signals
) -> None:
    target = handle("Spared")
    pool = engine_pool(target, links)
    pages = await target.broadcast("metrics_page").results_async(timeout_s=WAIT_S)
    names = {name for name, _ in pages}
    leases = [await pool.lease(f"first{n}", timeout_s=WAIT_S) for n in range(3)]
    [serving] = {lease.grant.replica for lease in leases}
    assert await text_of(leases[0], "first0") == expected
    more = [await pool.lease(f"more{n}", timeout_s=WAIT_S) for n in range(2)]
    assert more[0].grant.replica == serving
    assert {more[1].grant.replica} == names - {serving}, "the spare has what it has no room for"
    for lease in more:  # a full replica answers no control call
        await lease.release()
    both = list(await target.broadcast("stats").results_async(timeout_s=WAIT_S))
    assert memory_of(both[0]) == memory_of(both[1]) != set(), "they share no weights"
    struck = int(max(both, key=lambda stats: float(stats["num_leases"]))[lost])
    os.kill(struck, how)
    if how is signal.SIGKILL:
        for lease in leases:
            with pytest.raises(LinkLost):
                await lease.channel.receive()
    for lease in leases:
        await lease.release()
    lease = await pool.lease("second", timeout_s=WAIT_S)
    assert {lease.grant.replica} == names - {serving}, "another was started"
    assert lease.grant.batch_invariant
    assert await text_of(lease, "second") == expected
    await lease.release()
    with contextlib.suppress(ProcessLookupError):  # its watchdog may have ended it meanwhile
        os.kill(struck, signal.SIGCONT)


def memory_of(stats: dict[str, float]) -> set[int]:
    """The inodes of weights that a replica's rank shares."""
    folder = Path(f"/proc/{int(stats['rank_pid'])}/fd")
    shared = [link for link in folder.iterdir() if "memfd:outrider-weights" in os.readlink(link)]
    return {link.stat().st_ino for link in shared}
