"""Engines of one device, stepped by turns in the event loop itself: no thread, no socket, no Ray.

This serves measurements of engines and loop alone, and draft and target that share a device. A step
of one is a step the other must wait for anyway. Engines that come first go first. If the draft
comes before the target, all drafts are ready before the target's pass. One pass then verifies them
all.

The event loop gets turns between steps until every session has come back with its next message. It
stops waiting when no message has come for a while. That is what `models.scheduler.batch_window`
does with a clock; here nothing is on its way, so a few turns are enough.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from deployments.engine.loop import Engine
from deployments.link.mailbox import HeldLease
from deployments.local.pool import EngineChannel, LocalChannel, LocalChannels
from models.protocol.messages import (
    Endpoint,
    EngineQuestion,
    EngineReply,
    EngineRequest,
    LeaseGrant,
    Verdict,
)
from router.ports import EngineLease

# A reply reaches its session and comes back as a message within some six turns of the event loop.
_QUIET_TURNS = 12


class InlinePool:
    """Implements `router.ports.EnginePool` over one engine of an `InlineDevice`.

    Attributes:
        session_ids: sessions with a lease.
        busy: those that wait for an answer of this engine.
    """

    def __init__(
        self,
        device: InlineDevice,
        engine: Engine,
        *,
        epoch: int,
        max_model_len: int,
    ) -> None:
        self.engine = engine
        self.grant = LeaseGrant(
            endpoint=Endpoint(address="inline", public_key="", epoch=epoch),
            asker_key="inline",
            max_model_len=max_model_len,
        )
        self._device = device
        self.session_ids: set[str] = set()
        self.busy: set[str] = set()

    async def lease(self, session_id: str, *, timeout_s: float) -> EngineLease:
        """See `router.ports.Pool.lease`. Always at once, until the device has failed or closed."""
        channel = self._device.open_channel(self._submit)
        self.session_ids.add(session_id)

        def release() -> None:
            self.session_ids.discard(session_id)
            self.busy.discard(session_id)
            self._device.close_channel(channel)
            self.engine.close(session_id)

        return HeldLease(self.grant, channel, release)

    def step(self) -> None:
        """Have the engine do its next work, and hand out what it answers."""
        for channel, reply in self.engine.step():
            if not isinstance(reply, Verdict) or reply.is_last:
                self.busy.discard(reply.session_id)
            if isinstance(channel, LocalChannel):
                channel.mailbox.put(reply)

    def _submit(self, channel: EngineChannel, message: EngineRequest) -> None:
        if message.session_id in self.session_ids:
            self.engine.submit(message, channel)
            if isinstance(message, EngineQuestion):
                self.busy.add(message.session_id)
            self._device.note_message()


class InlineDevice:
    """Drives the engines of its pools until closed. Belongs to one event loop."""

    def __init__(self) -> None:
        self._pools: list[InlinePool] = []
        self._channels: LocalChannels[EngineRequest, EngineReply] = LocalChannels()
        self._num_messages = 0
        self._has_room = False  # a session has left, and the next one may be on its way
        self._awake = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def pool(self, engine: Engine, *, epoch: int, max_model_len: int) -> InlinePool:
        """Add a pool over a further engine, which comes after those before it."""
        pool = InlinePool(self, engine, epoch=epoch, max_model_len=max_model_len)
        self._pools.append(pool)
        return pool

    async def close(self) -> None:
        """End the leases and the stepping. Idempotent."""
        self._channels.lose("the device is closed")
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    # --- the pools' side

    def open_channel(self, submit: Callable[[EngineChannel, EngineRequest], None]) -> EngineChannel:
        """Return the channel of one more session, and step from now on.

        Raises:
            Unavailable: nothing is served any more.
        """
        channel = self._channels.open(submit)
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._run(), name="inline-device")
        return channel

    def close_channel(self, channel: EngineChannel) -> None:
        """Forget a channel: its session is over."""
        self._channels.close(channel)
        self._has_room = True

    def note_message(self) -> None:
        """Note that an engine took a message."""
        self._num_messages += 1
        self._awake.set()

    # --- stepping

    async def _run(self) -> None:
        try:
            while True:
                await self._settle()
                pool = next((p for p in self._pools if p.engine.has_work), None)
                if pool is None:
                    self._awake.clear()
                    await self._awake.wait()
                else:
                    pool.step()
        except Exception as error:
            self._channels.lose(f"the engine died: {error}")
            raise

    async def _settle(self) -> None:
        """Let sessions that were answered come back."""
        await asyncio.sleep(0)
        quiet_turns, num_messages = 0, self._num_messages
        while quiet_turns < _QUIET_TURNS and self._expects_more():
            await asyncio.sleep(0)
            quiet_turns = quiet_turns + 1 if num_messages == self._num_messages else 0
            num_messages = self._num_messages
        self._has_room = False

    def _expects_more(self) -> bool:
        """Return whether a session waits for no engine; it may draft beside its verified tokens."""
        if self._has_room:
            return True
        busy = set().union(*(pool.busy for pool in self._pools))
        return any(not pool.session_ids <= busy for pool in self._pools)
