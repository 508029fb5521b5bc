"""One model of a replica: its rank processes, and the leases that sessions hold on it.

Calls to ranks are made by tasks that the owner starts in a context of its own (`replica` says why).
Leases that ended on either side must not be lost. They are reported again until that is
acknowledged.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

from ray.exceptions import RayError

from deployments.config.sections.models import LinkConfig, ModelConfig
from deployments.engine.loop import LoopStats
from deployments.engine.rank import EngineKind, RankReport
from deployments.engine.rank_group import RankGroup
from deployments.link.client import LinkChannel, LinkClient
from deployments.link.leases import LeaseKey
from deployments.link.mailbox import HeldLease
from deployments.serve.logs import is_json
from models.engine.drafting.ended_texts import EndedText
from models.protocol.errors import Unavailable
from models.protocol.messages import EngineReply, LeaseGrant, LeaseRequest
from router.ports import EngineLease, EnginePool

CONTROL_TIMEOUT_S = 5.0  # for a control call, which waits for nothing but the GIL
_SETTLE_PERIOD_S = 1.0  # leases that ended at the leader are asked for this often


class AdmissionRefused(RuntimeError):
    """The leader takes no session now."""


class LoadedModel:
    """Implements `swap.DraftModel`; a target is one as well, which is never swapped.

    Args:
        kind: which engine the leader runs.
        model: what to load.
        link: how the leader listens.
        on_stats: called with the leader's counters, about once a second.
        on_lost: called once, when the ranks are lost, with the reason.
        beside: the model whose place it may take, and whose GPUs it shares.
    """

    def __init__(
        self,
        kind: EngineKind,
        model: ModelConfig,
        link: LinkConfig,
        on_stats: Callable[[LoadedModel, LoopStats], None],
        on_lost: Callable[[LoadedModel], None],
        beside: LoadedModel | None = None,
    ) -> None:
        self._link = link
        self._on_lost = on_lost
        self._leases: dict[LeaseKey, asyncio.Event] = {}
        self._released: set[LeaseKey] = set()  # to be reported to the leader
        self._has_released = asyncio.Event()
        self._is_empty = asyncio.Event()  # set while no session holds a lease, or it is lost
        self._is_empty.set()
        self._grant: LeaseGrant | None = None
        self._links: LinkClient | None = None
        self._is_ended = False
        self.tasks: list[asyncio.Task[None]] = []  # that it cannot do without
        self.path = model.model_path
        self.lost = ""
        self.reports: list[RankReport] = []
        self.ranks: RankGroup = RankGroup(
            kind,
            model,
            link,
            partial(on_stats, self),
            logs_json=is_json(),
            beside=None if beside is None else beside.ranks,
        )

    async def start(self) -> None:
        """Load it, and watch it from then on.

        Raises:
            RayError: a rank died or could not load; `end` it then.
            TimeoutError: they were not ready within the limit; likewise.
        """
        self.reports = await self.ranks.start()
        self._grant = self.reports[0].grant
        self.tasks = [
            asyncio.create_task(self._watch(), name="watch-ranks"),
            asyncio.create_task(self._settle_leases(), name="settle-leases"),
        ]

    @property
    def grant(self) -> LeaseGrant:
        """The address of its leader, and the model that it serves."""
        assert self._grant is not None, "the leader grants leases once it is loaded"
        return self._grant

    # --- leases

    @property
    def num_leases(self) -> int:
        """Sessions that hold one."""
        return len(self._leases)

    async def admit(self, request: LeaseRequest) -> LeaseKey:
        """Give a session a lease, which `release` ends.

        Raises:
            AdmissionRefused: the leader may hang.
            RayError: the leader is lost.
            RuntimeError: the model has been freed meanwhile.
        """
        answer: Any = await self.ranks.leader.admit.remote(request.session_id, request.public_key)
        if isinstance(answer, str):
            raise AdmissionRefused(answer)
        lease_id: int = answer
        if self._is_ended:
            raise RuntimeError(f"{self.path} is freed")
        key = (request.session_id, lease_id)
        self._leases[key] = asyncio.Event()
        self._is_empty.clear()
        return key

    async def ended(self, key: LeaseKey) -> None:
        """Wait until the leader has ended a lease itself, or is lost."""
        await self._leases[key].wait()

    def release(self, key: LeaseKey) -> None:
        """End a lease. Idempotent."""
        if self._leases.pop(key, None) is not None:
            self._released.add(key)
            self._has_released.set()
        if not self._leases:
            self._is_empty.set()

    async def emptied(self) -> None:
        """Return when no session holds a lease, or it is lost."""
        await self._is_empty.wait()

    # --- what a swap asks for

    @property
    def pool(self) -> EnginePool:
        """The pool that leases it from inside the replica: its own `lease`."""
        return self

    async def lease(self, session_id: str, *, timeout_s: float) -> EngineLease:
        """See `router.ports.Pool.lease`; the link is like a router's, as is what it measures."""
        if self._links is None:
            self._links = LinkClient(high_water_mark=self._link.high_water_mark)
        request = LeaseRequest(session_id=session_id, public_key=self._links.public_key)
        try:
            key = await _in_time(self.admit(request), timeout_s)
        except (RayError, RuntimeError) as error:
            raise Unavailable(f"the model grants no lease: {error}") from None
        channel: LinkChannel[Any, Any] = self._links.channel(
            self.grant.endpoint, session_id, EngineReply
        )

        def end() -> None:
            channel.close()
            self.release(key)

        return HeldLease(self.grant, channel, end)

    async def keep_texts(self, *, is_on: bool) -> None:
        """Keep texts of sessions that end, or forget them."""
        await _in_time(self.ranks.leader.keep_texts.remote(is_on), CONTROL_TIMEOUT_S)

    async def take_texts(self) -> list[EndedText]:
        """Return the texts that have come since the last call."""
        answer = self.ranks.leader.take_texts.remote()
        texts: list[EndedText] = await _in_time(answer, CONTROL_TIMEOUT_S)
        return texts

    def end(self) -> None:
        """Kill the ranks; every lease on them ends. Idempotent."""
        if self._is_ended:
            return
        self._is_ended = True
        self.ranks.kill()
        for task in self.tasks:
            task.cancel()
        self._end_leases()
        if self._links is not None:
            self.tasks.append(asyncio.create_task(self._links.close(), name="close-links"))

    # --- the ranks

    async def stats(self) -> LoopStats:
        """Return the leader's counters."""
        stats: LoopStats = await self.ranks.leader.stats.remote()
        return stats

    async def _watch(self) -> None:
        reason = await self.ranks.watch()
        if not self._is_ended:
            self.lost = reason
            self._end_leases()
            self._on_lost(self)

    def _end_leases(self) -> None:
        for event in self._leases.values():
            event.set()
        self._is_empty.set()

    async def _settle_leases(self) -> None:
        """Report to the leader which leases ended here; end those that it ended itself."""
        acknowledged: list[LeaseKey] = []
        while True:
            await self._wait_for_releases()
            released = list(self._released)
            try:
                async with asyncio.timeout(CONTROL_TIMEOUT_S):
                    ended: Any = await self.ranks.leader.settle.remote(released, acknowledged)
            except (RayError, TimeoutError):
                # Reported again in the next turn; `_watch` decides if the leader is lost.
                await asyncio.sleep(_SETTLE_PERIOD_S)
                continue
            self._released.difference_update(released)
            acknowledged = ended
            for key in ended:
                if key in self._leases:
                    self._leases[key].set()

    async def _wait_for_releases(self) -> None:
        self._has_released.clear()
        if self._released:
            return
        try:
            async with asyncio.timeout(_SETTLE_PERIOD_S):
                await self._has_released.wait()
        except TimeoutError:
            return


async def _in_time(answer: Awaitable[Any], timeout_s: float) -> Any:
    """Return the leader's answer. Raises `Unavailable` if it is late, with the limit."""
    try:
        async with asyncio.timeout(timeout_s):
            return await answer
    except TimeoutError:
        raise Unavailable(f"the model's leader has not answered within {timeout_s:g} s") from None
