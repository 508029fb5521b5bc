"""Engines and grammars in this process, for the same ports as everywhere: no Ray, no sockets.

It serves tests, notebooks and the offline benchmark. Each engine is driven by one worker thread
with the loop that leaders run (`engine.loop`). The grammar host has a thread of its own. Sessions
live in the event loop that leased them. `fail` plays the death of a pool's process.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, Generic, TypeVar

from deployments.constraint.failures import failed
from deployments.constraint.reward_workers import RewardWorkers
from deployments.engine.loop import Engine, EngineLoop, LoopStats
from deployments.link.mailbox import HeldLease, MailboxChannel
from models.grammar.masks import GrammarHandler
from models.protocol.errors import Unavailable
from models.protocol.messages import (
    ConstraintReply,
    ConstraintRequest,
    Endpoint,
    EngineReply,
    EngineRequest,
    GrammarCommit,
    LeaseGrant,
)
from models.protocol.rewards import RewardScore
from router.ports import ConstraintLease, EngineLease

logger = logging.getLogger(__name__)

Request = TypeVar("Request")
Reply = TypeVar("Reply")

_MAX_INBOX = 65536  # messages; beyond it the oldest is lost, as on a link
_IDLE_TIMEOUT_S = 600.0  # leases of sessions that are silent for longer end
_JOIN_S = 10.0


class LocalChannel(MailboxChannel[Request, Reply]):
    """Implements `router.ports.Channel` by a function call."""

    def __init__(self, forward: Callable[[LocalChannel[Request, Reply], Request], None]) -> None:
        super().__init__(partial(forward, self))
        self.loop = asyncio.get_running_loop()


EngineChannel = LocalChannel[EngineRequest, EngineReply]
ConstraintChannel = LocalChannel[ConstraintRequest, ConstraintReply]


class LocalChannels(Generic[Request, Reply]):
    """The channels of sessions that are all lost at once, as if a process had died."""

    def __init__(self) -> None:
        self._held: set[LocalChannel[Request, Reply]] = set()
        self._lost: str | None = None

    def open(
        self, forward: Callable[[LocalChannel[Request, Reply], Request], None]
    ) -> LocalChannel[Request, Reply]:
        """Return the channel of one more session.

        Raises:
            Unavailable: all are lost.
        """
        if self._lost is not None:
            raise Unavailable(self._lost)
        channel = LocalChannel(forward)
        self._held.add(channel)
        return channel

    def close(self, channel: LocalChannel[Request, Reply]) -> None:
        """Forget a channel: its session is over."""
        self._held.discard(channel)
        channel.mailbox.mark_lost("the lease was released")

    def lose(self, reason: str) -> None:
        """Lose all of them, for the first reason that was given."""
        self._lost = self._lost or reason
        for channel in self._held:
            channel.mailbox.mark_lost(self._lost)
        self._held.clear()


class _LocalPort:
    """`engine.loop.EnginePort` over a deque; senders are channels."""

    def __init__(self) -> None:
        self._inbox: deque[tuple[object, EngineRequest]] = deque(maxlen=_MAX_INBOX)
        self._arrived = threading.Event()

    def put(self, messages: Sequence[tuple[object, EngineRequest]]) -> None:
        self._inbox.extend(messages)
        self._arrived.set()

    def receive(self, timeout_s: float) -> list[tuple[object, EngineRequest]]:
        if not self._inbox and timeout_s > 0.0:
            self._arrived.wait(timeout_s)
        self._arrived.clear()  # before the inbox is emptied: what comes after sets it again
        messages = []
        while self._inbox:
            messages.append(self._inbox.popleft())
        return messages

    def send(self, replies: list[tuple[object, EngineReply]]) -> None:
        by_loop: dict[asyncio.AbstractEventLoop, list[tuple[Any, EngineReply]]] = {}
        for channel, reply in replies:
            if isinstance(channel, LocalChannel):
                by_loop.setdefault(channel.loop, []).append((channel, reply))
        for loop, deliveries in by_loop.items():
            _call_in(loop, partial(_deliver, deliveries))

    def wake(self) -> None:
        self._arrived.set()


class LocalEnginePool:
    """Implements `router.ports.EnginePool` over one engine in this process.

    Args:
        engine: a draft or target engine; the pool's thread owns it from `start` on.
        epoch: the epoch the engine was made with.
        max_model_len, kv_cache_tokens: published in the grant.
    """

    def __init__(
        self,
        engine: Engine,
        *,
        epoch: int,
        max_model_len: int,
        kv_cache_tokens: int = 0,
    ) -> None:
        self.grant = LeaseGrant(
            endpoint=Endpoint(address="local", public_key="", epoch=epoch),
            asker_key="local",
            max_model_len=max_model_len,
            kv_cache_tokens=kv_cache_tokens,
        )
        self.engine = engine
        self._port = _LocalPort()
        self._loop = EngineLoop(engine, self._port, idle_timeout_s=_IDLE_TIMEOUT_S)
        self._outbox: list[tuple[object, EngineRequest]] = []
        self._channels: LocalChannels[EngineRequest, EngineReply] = LocalChannels()
        self._thread: threading.Thread | None = None

    async def lease(self, session_id: str, *, timeout_s: float) -> EngineLease:
        """See `router.ports.Pool.lease`."""
        channel = self._channels.open(self._forward)
        self._start()
        lease_id = self._loop.leases.grant(session_id)

        def release() -> None:
            self._flush()
            self._channels.close(channel)
            self._loop.release(session_id, lease_id)

        return HeldLease(self.grant, channel, release)

    def stats(self) -> LoopStats:
        """Counters of the engine's loop."""
        return self._loop.stats()

    def fail(self, reason: str = "the engine's process is gone") -> None:
        """Lose the engine as if its process had died: leases end, none is granted again."""
        self._loop.stop()
        self._channels.lose(reason)

    async def close(self) -> None:
        """Stop the engine's thread. Idempotent."""
        self.fail("the pool is closed")
        if self._thread is not None:
            await asyncio.to_thread(self._thread.join, _JOIN_S)

    def _start(self) -> None:
        if self._thread is None:
            home = asyncio.get_running_loop()
            self._thread = threading.Thread(
                target=self._run, args=(home,), name="local-engine", daemon=True
            )
            self._thread.start()

    def _run(self, home: asyncio.AbstractEventLoop) -> None:
        try:
            self._loop.run()
        except Exception as error:
            logger.exception("local engine died")
            reason = f"the engine died: {error}"
            _call_in(home, partial(self.fail, reason))

    def _forward(self, channel: EngineChannel, message: EngineRequest) -> None:
        if not self._outbox:
            asyncio.get_running_loop().call_soon(self._flush)
        self._outbox.append((channel, message))

    def _flush(self) -> None:
        if self._outbox:
            outbox, self._outbox = self._outbox, []
            self._port.put(outbox)


class LockedHost:
    """A grammar host that several threads may ask; engines get masks from it directly."""

    def __init__(self, host: GrammarHandler) -> None:
        self._host = host
        self._lock = threading.Lock()

    def handle(self, requests: list[ConstraintRequest]) -> list[ConstraintReply]:
        """See `GrammarHandler.handle`."""
        with self._lock:
            return self._host.handle(requests)

    def handle_at_once(self, requests: list[ConstraintRequest]) -> list[ConstraintReply] | None:
        """Handle requests at once; return None if another thread uses the host."""
        if not self._lock.acquire(blocking=False):
            return None
        try:
            return self._host.handle(requests)
        finally:
            self._lock.release()


class LocalConstraintPool:
    """Implements `router.ports.ConstraintPool` over a grammar host in this process.

    `host` is the same host with a lock around it: give `LocalMaskSource(pool.host)` to the engines.
    Rewards are a stranger's code: they have a process of their own here too, from the first
    question on. They are refused if `rewards` is not given.
    """

    def __init__(
        self, host: GrammarHandler, *, rewards: RewardWorkers | None = None, epoch: int = 1
    ) -> None:
        self.host = LockedHost(host)
        self._rewards = rewards
        self.grant = LeaseGrant(
            endpoint=Endpoint(address="local", public_key="", epoch=epoch), asker_key=""
        )
        self._worker = ThreadPoolExecutor(1, thread_name_prefix="local-grammar")
        self._channels: LocalChannels[ConstraintRequest, ConstraintReply] = LocalChannels()

    async def lease(self, session_id: str, *, timeout_s: float) -> ConstraintLease:
        """See `router.ports.Pool.lease`."""
        channel = self._channels.open(self._forward)
        return HeldLease(self.grant, channel, partial(self._channels.close, channel))

    def begin_rewards(self) -> None:
        """Start the process of rewards now; if not, the first question does."""
        if self._rewards is not None:
            self._rewards.begin()

    def fail(self, reason: str = "the constraint process is gone") -> None:
        """Lose the host as if its process had died: leases end, none is granted again."""
        self._channels.lose(reason)

    async def close(self) -> None:
        """Stop the host's thread. Idempotent."""
        self.fail("the pool is closed")
        if self._rewards is not None:
            await self._rewards.stop()
        await asyncio.to_thread(self._worker.shutdown)

    def _forward(self, channel: ConstraintChannel, message: ConstraintRequest) -> None:
        if isinstance(message, RewardScore):
            self._score(channel, message)
            return
        # Tokens are committed in less time than another thread takes to hear of them.
        if isinstance(message, GrammarCommit):
            replies = self.host.handle_at_once([message])
            if replies is not None:
                channel.loop.call_soon(_deliver, [(channel, reply) for reply in replies])
                return
        self._worker.submit(self._answer, channel, message)

    def _score(self, channel: ConstraintChannel, question: RewardScore) -> None:
        if self._rewards is not None:
            self._rewards.submit(question, channel.mailbox.put)
        elif (refusal := failed(question, "there are no rewards in this process")) is not None:
            channel.mailbox.put(refusal)

    def _answer(self, channel: ConstraintChannel, message: ConstraintRequest) -> None:
        replies = self.host.handle([message])
        _call_in(channel.loop, partial(_deliver, [(channel, reply) for reply in replies]))


def _deliver(deliveries: Sequence[tuple[LocalChannel[Any, Any], Any]]) -> None:
    for channel, reply in deliveries:
        channel.mailbox.put(reply)


def _call_in(loop: asyncio.AbstractEventLoop, callback: Callable[[], None]) -> None:
    """Run `callback` in an event loop; dropped when that loop is closed, with its sessions."""
    try:
        loop.call_soon_threadsafe(callback)
    except RuntimeError:
        logger.debug("a session's event loop is closed; its replies are dropped")
