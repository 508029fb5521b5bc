import asyncio
import threading
from collections.abc import AsyncIterator
from typing import Any

import pytest

from deployments.config.sections.models import LinkConfig, ModelConfig
from deployments.engine.loop import EngineLoop
from deployments.engine.rank import LinkPort, Rank, make_engine
from deployments.link.client import LinkChannel, LinkClient
from deployments.link.masks import LinkMaskSource
from deployments.link.server import LinkServer
from models.config import EngineConfig
from models.protocol.messages import (
    EngineReply,
    EngineRequest,
    NeedOpen,
    Proposal,
    Sampling,
    Verdict,
)
from tests.cases.messages import opening, proposing, verifying
from tests.fakes.engines import make_runner

WAIT_S = 20.0
PROMPT = [5, 6, 7, 8]


class Leader:
    """What `Rank.load` puts together, over a tiny real model, without Ray."""

    def __init__(self, kind: str) -> None:
        self.masks = LinkMaskSource()
        self.server: LinkServer[EngineRequest] = LinkServer(EngineRequest)
        # Sizes of its own give each kind a runner of its own: two threads must not share one.
        runner = make_runner(kv_cache_tokens=1024 if kind == "draft" else 2048)
        engine = make_engine(kind, runner, self.masks, self.server.endpoint.epoch)
        self.loop = EngineLoop(engine, LinkPort(self.server), idle_timeout_s=60.0, poll_s=0.02)
        self._thread = threading.Thread(target=self.loop.run)
        self._thread.start()

    def close(self) -> None:
        self.loop.stop()
        self._thread.join(WAIT_S)
        self.masks.shutdown()
        self.server.close()


class Client:
    """One session at a leader."""

    def __init__(self, links: LinkClient, leader: Leader, session_id: str) -> None:
        leader.server.allow(links.public_key)
        leader.loop.leases.grant(session_id)
        self.session_id, self.epoch = session_id, leader.server.endpoint.epoch
        self.channel: LinkChannel[EngineRequest, EngineReply] = links.channel(
            leader.server.endpoint, session_id, EngineReply
        )

    def open(self) -> None:
        greedy = Sampling(temperature=0)
        self.channel.send(opening(self.session_id, greedy, len(PROMPT), epoch=self.epoch))

    def verify(self, seq: int, run_on: int) -> None:
        self.channel.send(
            verifying(self.session_id, seq, PROMPT, draft=[], epoch=self.epoch, run_on=run_on)
        )

    def propose(self, seq: int, num_draft_tokens: int) -> None:
        self.channel.send(
            proposing(self.session_id, seq, PROMPT, num_draft_tokens, epoch=self.epoch)
        )

    async def receive(self) -> EngineReply:
        async with asyncio.timeout(WAIT_S):
            return await self.channel.receive()


@pytest.fixture
async def links() -> AsyncIterator[LinkClient]:
    client = LinkClient()
    yield client
    await client.close()


async def test_sessions_decode_through_the_socket(links: LinkClient) -> None:
    leader = Leader("target")
    clients = [Client(links, leader, name) for name in ("a", "b", "c")]
    for client in clients:
        client.open()
        client.verify(seq=1, run_on=6)
    texts = []
    for client in clients:
        verdicts = [await client.receive() for _ in range(7)]
        assert all(isinstance(verdict, Verdict) for verdict in verdicts)
        assert [verdict.part for verdict in verdicts] == list(range(7))
        assert [verdict.is_last for verdict in verdicts] == [False] * 6 + [True]
        texts.append([verdict.token for verdict in verdicts])
    assert texts[0] == texts[1] == texts[2]
    leader.close()


async def test_draft_is_the_text_of_the_same_model(links: LinkClient) -> None:
    target, draft = Leader("target"), Leader("draft")
    verifier, drafter = Client(links, target, "a"), Client(links, draft, "a")
    verifier.open()
    verifier.verify(seq=1, run_on=3)
    drafter.open()
    drafter.propose(seq=1, num_draft_tokens=4)
    proposal = await drafter.receive()
    assert isinstance(proposal, Proposal)
    assert proposal.tokens == [(await verifier.receive()).token for _ in range(4)]
    target.close()
    draft.close()


async def test_released_session_is_unknown(links: LinkClient) -> None:
    leader = Leader("target")
    client = Client(links, leader, "a")
    client.open()
    client.verify(seq=1, run_on=0)
    assert isinstance(await client.receive(), Verdict)
    leader.loop.release("a", 1)
    client.verify(seq=2, run_on=0)
    assert await client.receive() == NeedOpen(session_id="a", seq=2, epoch=client.epoch)
    leader.close()


def test_rank_that_has_not_loaded_says_so() -> None:
    # Any: Ray's decorators type the control methods as remote ones, which here they are not.
    rank: Any = Rank("target", ModelConfig(model_path="x"), LinkConfig(), rank=1, world_size=2)
    assert rank.pulse() is None, "a rank that loads is alive"
    with pytest.raises(RuntimeError, match=r"before load\(\), or not the leader"):
        rank.admit("a", "key")
    with pytest.raises(RuntimeError, match=r"before load\(\)"):
        rank.run_loop()


def test_lost_answers_lose_neither_releases_nor_ends(links: LinkClient) -> None:
    leader = Leader("target")
    rank: Any = Rank("target", ModelConfig(model_path="x"), LinkConfig(), rank=0, world_size=1)
    rank._loop = leader.loop
    kept, released = (leader.loop.leases.grant(name) for name in ("kept", "released"))
    for _ in range(2):  # the first answer is lost, so the call is made again
        assert rank.settle([("released", released)], []) == []
        assert rank.stats().num_sessions == 1
    newer = leader.loop.leases.grant("kept")
    assert rank.settle([], []) == [("kept", kept)]
    assert rank.settle([], []) == [("kept", kept)]
    assert rank.settle([("kept", newer)], [("kept", kept)]) == []
    assert rank.stats().num_sessions == 0
    leader.close()


def test_the_config_section_is_the_engines_config() -> None:
    """A rank hands it to its runner as it is; no key of the engine has a second default."""
    assert issubclass(ModelConfig, EngineConfig)
    for name, field in EngineConfig.model_fields.items():
        assert ModelConfig.model_fields[name].default == field.default
        assert name not in ModelConfig.__annotations__
