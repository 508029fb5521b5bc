"""Real Serve: leases and links to the demo pair and the grammars, and the death of a process."""

import asyncio
import json
import os
import signal
import time
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
from ray import serve

from deployments.app import bind_constraint, bind_engine
from deployments.config.schema import GrammarServiceConfig
from deployments.config.sections.models import LinkConfig, ModelConfig
from deployments.ingress.pools import constraint_pool, engine_pool
from deployments.link.client import LinkClient
from models.protocol.errors import LinkLost
from models.protocol.messages import (
    Endpoint,
    EngineReply,
    Grammar,
    GrammarCommit,
    GrammarCommitted,
    GrammarOpen,
    GrammarReady,
    Open,
    Proposal,
    Propose,
    Sampling,
    Verdict,
    Verify,
)
from models.text.tokenizer import Tokenizer
from router.ports import EngineLease
from tests.harness.held_services import HeldService
from tests.harness.local import DEMO
from tests.harness.private_serve import applications

pytestmark = [
    pytest.mark.ray,
    pytest.mark.slow,
    pytest.mark.timeout(600),
    pytest.mark.usefixtures("bare_serve"),
]

WAIT_S = 60.0
PROMPT = [11, 12, 13, 14]
LINK = LinkConfig(host="loopback")


def model(name: str, *, spare: bool = False) -> ModelConfig:
    path = str(DEMO / name)
    return ModelConfig(
        model_path=path, max_model_len=256, kv_cache_tokens=2048, max_num_seqs=8, spare=spare
    )


@pytest.fixture(scope="module")
def cluster(held: HeldService) -> Iterator[None]:
    held.get("bare_serve")
    found = {
        "target": bind_engine("Target", "target", model("target"), LINK),
        "draft": bind_engine("Draft", "draft", model("draft"), LINK),
        "constraint": bind_constraint(GrammarServiceConfig(), LINK, str(DEMO / "target")),
    }
    with applications(found):
        yield


@pytest.fixture
def spared(cluster: None) -> Iterator[None]:
    """A target with a spare, beside the others."""
    application = bind_engine("Spared", "target", model("target", spare=True), LINK)
    with applications({"spared": application}):
        yield


@pytest.fixture
async def links(cluster: None) -> AsyncIterator[LinkClient]:
    client = LinkClient()
    yield client
    await client.close()


def handle(name: str) -> Any:
    return serve.get_deployment_handle(name, name.lower())


def send_open(lease: EngineLease, session_id: str, *, constraint: Endpoint | None = None) -> None:
    lease.channel.send(
        Open(
            session_id=session_id,
            epoch=lease.grant.endpoint.epoch,
            sampling=Sampling(temperature=0),
            eos_ids=list(Tokenizer.load(DEMO / "target").eos_ids),
            prompt_len=len(PROMPT),
            constraint=constraint,
        )
    )


def send_verify(lease: EngineLease, session_id: str, *, run_on: int) -> None:
    lease.channel.send(
        Verify(
            session_id=session_id,
            epoch=lease.grant.endpoint.epoch,
            seq=1,
            base_len=0,
            prefix_hash=0,
            tokens=PROMPT,
            draft=[],
            run_on=run_on,
        )
    )


async def receive(lease: EngineLease) -> EngineReply:
    async with asyncio.timeout(WAIT_S):
        return await lease.channel.receive()


async def tokens_of(lease: EngineLease) -> list[int]:
    """Tokens of a verify's verdicts, up to the last."""
    tokens = []
    while True:
        verdict = await receive(lease)
        assert isinstance(verdict, Verdict), verdict
        tokens.append(verdict.token)
        if verdict.is_last:
            return tokens


async def stats_become(name: str, **wanted: float) -> None:
    """Wait until a deployment's counters are as wanted."""
    deadline = time.monotonic() + WAIT_S
    while True:
        stats = await handle(name).stats.remote()
        if stats.items() >= wanted.items():
            return
        assert time.monotonic() < deadline, f"{name}: {stats} never became {wanted}"
        await asyncio.sleep(0.05)


async def test_lease_serves_a_session_and_its_release_frees_it(links: LinkClient) -> None:
    lease = await engine_pool(handle("Target"), links).lease("a", timeout_s=WAIT_S)
    assert lease.grant.batch_invariant
    assert lease.grant.max_model_len == 256
    send_open(lease, "a")
    send_verify(lease, "a", run_on=4)
    assert len(await tokens_of(lease)) == 5
    await stats_become("Target", num_leases=1, num_sessions=1)
    await lease.release()
    await stats_become("Target", num_leases=0, num_sessions=0, num_used_blocks=0)


async def test_target_asks_the_constraint_service_for_masks(links: LinkClient) -> None:
    target = await engine_pool(handle("Target"), links).lease("c", timeout_s=WAIT_S)
    matcher = await constraint_pool(handle("Constraint"), links).lease("c", timeout_s=WAIT_S)
    endpoint = matcher.grant.endpoint
    schema = {"enum": ["yes", "no"]}
    matcher.channel.send(
        GrammarOpen(
            session_id="c",
            epoch=endpoint.epoch,
            grammar=Grammar(kind="json_schema", text=json.dumps(schema)),
            peers=[target.grant.asker_key],
        )
    )
    async with asyncio.timeout(WAIT_S):
        ready = await matcher.channel.receive()
    assert isinstance(ready, GrammarReady), ready
    send_open(target, "c", constraint=endpoint)
    send_verify(target, "c", run_on=12)
    tokens = await tokens_of(target)
    tokenizer = Tokenizer.load(DEMO / "target")
    detokenizer = tokenizer.detokenizer()
    text = detokenizer.push([token for token in tokens if token not in tokenizer.eos_ids])
    assert json.loads(text + detokenizer.flush()) in schema["enum"]
    matcher.channel.send(
        GrammarCommit(
            session_id="c",
            epoch=endpoint.epoch,
            seq=1,
            base_len=0,
            prefix_hash=0,
            tokens=tokens,
        )
    )
    async with asyncio.timeout(WAIT_S):
        committed = await matcher.channel.receive()
    assert isinstance(committed, GrammarCommitted), committed
    assert (committed.num_valid, committed.is_complete) == (len(tokens), True)
    await target.release()
    await matcher.release()
    await stats_become("Constraint", num_leases=0)


async def test_killed_draft_is_noticed_and_comes_back(links: LinkClient) -> None:
    drafts = engine_pool(handle("Draft"), links)
    leases = [await drafts.lease(name, timeout_s=WAIT_S) for name in ("d", "e")]
    proposal = await propose(leases[0], "d")
    pid = (await handle("Draft").stats.remote())["rank_pid"]
    waiting = [asyncio.create_task(receive(lease)) for lease in leases]
    killed_s = time.monotonic()
    os.kill(pid, signal.SIGKILL)
    for task in waiting:
        with pytest.raises(LinkLost):
            await task
    noticed_s = time.monotonic() - killed_s
    for lease in leases:
        await lease.release()
    lease = await drafts.lease("d", timeout_s=WAIT_S)
    print(f"noticed after {noticed_s:.3f} s, back after {time.monotonic() - killed_s:.1f} s")
    assert noticed_s < 5.0, "the routers must not wait for a time-out"
    assert (await propose(lease, "d")).tokens == proposal.tokens
    await lease.release()


async def test_a_spare_takes_over_in_the_replica_of_a_killed_target(
    links: LinkClient, spared: None
) -> None:
    target = handle("Spared")
    pool = engine_pool(target, links)
    texts, replicas = [], set()
    for name in ("first", "second"):
        spare = await ready_spare(target)
        leases = [await pool.lease(f"{name}{n}", timeout_s=WAIT_S) for n in range(2)]
        replicas.add(leases[0].grant.replica)
        send_open(leases[0], f"{name}0")
        send_verify(leases[0], f"{name}0", run_on=8)
        texts.append(await tokens_of(leases[0]))
        serving = (await target.stats.remote())["rank_pid"]
        waiting = [asyncio.create_task(receive(lease)) for lease in leases]
        os.kill(int(serving), signal.SIGKILL)
        for task in waiting:
            with pytest.raises(LinkLost) as lost:
                await task
            assert lost.value.reason == "replaced", "it counts, but its replica is not avoided"
        assert (await target.stats.remote())["rank_pid"] == spare
        for lease in leases:
            await lease.release()
    # The second time, the spare had been loaded beside a spare. Now one dies, unnoticed.
    spare, serving = await ready_spare(target), (await target.stats.remote())["rank_pid"]
    lease = await pool.lease("last", timeout_s=WAIT_S)
    replicas.add(lease.grant.replica)
    os.kill(int(spare), signal.SIGKILL)
    assert await ready_spare(target, but=spare)
    send_open(lease, "last")
    send_verify(lease, "last", run_on=8)
    texts.append(await tokens_of(lease))
    await lease.release()
    assert (await target.stats.remote())["rank_pid"] == serving
    assert texts[0] == texts[1] == texts[2]
    assert len(replicas) == 1, "the replica was replaced"


async def ready_spare(target: Any, but: float = 0) -> float:
    """Wait until a target has a spare, another one than `but`; its process."""
    deadline = time.monotonic() + WAIT_S
    while (pid := (await target.stats.remote())["spare_pid"]) in (0, but):
        assert time.monotonic() < deadline, "no spare was loaded"
        await asyncio.sleep(0.1)
    return float(pid)


async def propose(lease: EngineLease, session_id: str) -> Proposal:
    send_open(lease, session_id)
    lease.channel.send(
        Propose(
            session_id=session_id,
            epoch=lease.grant.endpoint.epoch,
            seq=1,
            base_len=0,
            prefix_hash=0,
            tokens=PROMPT,
            num_draft_tokens=4,
            deadline_ms=WAIT_S * 1e3,
        )
    )
    proposal = await receive(lease)
    assert isinstance(proposal, Proposal), proposal
    return proposal
