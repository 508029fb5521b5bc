"""The router's leases over Ray Serve: `router.ports.Pool` for a deployment of replicas.

A lease is a streaming handle call held open. Serve picks the replica, counts the session there, and
drains by it. The first item says where the replica's link listens; after that no message of the
session goes through Ray. The stream's end, by whatever cause, marks the session's channel lost at
once. Runs in the event loop of a Serve replica (or of a driver, in tests).
"""

from __future__ import annotations

import asyncio
import copy
import logging
from typing import Any, Generic, TypeVar, cast

from ray.serve.handle import DeploymentHandle, DeploymentResponseGenerator

from deployments.link.client import LinkChannel, LinkClient
from deployments.serve.errors import CALL_ERRORS, first_line
from deployments.serve.timed_names import avoided, full
from models.backoff import Backoff
from models.protocol.errors import LossReason, NoReplica, Unavailable
from models.protocol.messages import (
    ConstraintReply,
    EngineReply,
    EngineRequest,
    LeaseGrant,
    LeaseRefused,
    LeaseRequest,
)
from router.ports import ConstraintPool, EnginePool

logger = logging.getLogger(__name__)

Request = TypeVar("Request")
Reply = TypeVar("Reply")

_FIRST_PAUSE_S = 0.05  # before asking again when a replica refused; doubles up to:
_LONGEST_PAUSE_S = 0.5
_RELEASE_S = 1.0
_REFUSED_S = 5.0  # a replica that grants no lease now is avoided for so long


class _Refused(Exception):
    """A replica grants no lease now; another may."""


class ServeLease(Generic[Request, Reply]):
    """Implements `router.ports.Lease` over a streaming call whose first item has arrived."""

    def __init__(
        self,
        grant: LeaseGrant,
        channel: LinkChannel[Request, Reply],
        stream: DeploymentResponseGenerator[Any],
        session_id: str,
    ) -> None:
        self._session_id = session_id
        self.grant = grant
        self.channel = channel
        self._stream = stream
        self._watch = asyncio.create_task(self._watch_end(), name="lease-watch")
        self._is_released = False

    async def release(self) -> None:
        """See `router.ports.Lease.release`."""
        if self._is_released:
            return
        self._is_released = True
        self.channel.close()
        self._stream.cancel()
        self._watch.cancel()
        await asyncio.wait([self._watch], timeout=_RELEASE_S)

    async def _watch_end(self) -> None:
        message = "the lease's stream failed"
        reason: LossReason = "gone"
        try:
            message = f"the replica lost its model: {(await anext(self._stream)).reason}"
        except StopAsyncIteration:
            message, reason = "the replica ended the lease", "ended"
        except CALL_ERRORS as error:
            message = f"the replica is gone: {first_line(error)}"
        finally:  # whatever ended the stream: the session must not go on waiting for this channel
            if not self._is_released:
                logger.warning("lease lost: %s", message, extra={"session_id": self._session_id})
            self.channel.mark_lost(message, reason)


class ServePool(Generic[Request, Reply]):
    """Implements `router.ports.Pool` over the handle of one deployment.

    Args:
        handle: of a deployment with a method `lease(LeaseRequest)` that yields a LeaseGrant.
        links: the process's links; its public key goes into each request.
        reply_type: union of what the deployment's links send.
        vocabulary: digest of the one that replicas must have; "": any. While a model is changed,
            routers and engines of two models are there side by side.
    """

    def __init__(
        self,
        handle: DeploymentHandle[Any],
        links: LinkClient,
        reply_type: Any,
        vocabulary: str = "",
    ) -> None:
        # Made once: each configured handle costs a metrics pusher and a long poll.
        self._lease_handle = handle.options(stream=True, method_name="lease")
        self._deployment_name = handle.deployment_name
        self._links = links
        self._reply_type = reply_type
        self._vocabulary = vocabulary
        self._prefix_key = ""

    async def lease(self, session_id: str, *, timeout_s: float) -> ServeLease[Request, Reply]:
        """See `router.ports.Pool.lease`. Asks again until `timeout_s` when replicas refuse."""
        backoff = Backoff(_FIRST_PAUSE_S, _LONGEST_PAUSE_S)
        refusal = "others start, or do not answer"
        try:
            async with asyncio.timeout(timeout_s):
                while True:
                    try:
                        return await self._lease_once(session_id)
                    except (*CALL_ERRORS, StopAsyncIteration) as error:
                        refusal = first_line(error)
                    except _Refused as error:
                        refusal = str(error)
                    backoff.note_failure()
                    await asyncio.sleep(backoff.pause_s)
        except TimeoutError:
            complaint = f"no {self._deployment_name} replica granted a lease within {timeout_s:g} s"
            if self._deployment_name in full().names():
                raise Unavailable(f"{complaint}: all replicas are busy; {refusal}") from None
            raise NoReplica(f"{complaint}: {refusal}") from None

    async def _lease_once(self, session_id: str) -> ServeLease[Request, Reply]:
        request = LeaseRequest(
            session_id=session_id, public_key=self._links.public_key, prefix_key=self._prefix_key
        )
        stream = cast("DeploymentResponseGenerator[Any]", self._lease_handle.remote(request))
        try:
            grant: LeaseGrant | LeaseRefused = await anext(stream)
            if isinstance(grant, LeaseRefused):
                avoided().add(grant.replica, _REFUSED_S)
                raise _Refused(grant.reason)
            if self._vocabulary and grant.vocabulary != self._vocabulary:
                avoided().add(grant.replica, _REFUSED_S)
                raise _Refused("its model has other token ids than this router's tokenizer")
            channel = self._links.channel(grant.endpoint, session_id, self._reply_type)
        except BaseException:
            stream.cancel()
            raise
        return ServeLease(grant, channel, stream, session_id)


class PlacedServePool(ServePool[EngineRequest, EngineReply]):
    """Implements `router.ports.PlacedPool`: leases prefer a replica by how the text begins."""

    def near(self, prefix_key: str) -> EnginePool:
        """See `router.ports.PlacedPool.near` and `serve/lease_router.py`."""
        near = copy.copy(self)
        near._prefix_key = prefix_key
        return near


def engine_pool(
    handle: DeploymentHandle[Any],
    links: LinkClient,
    *,
    prefix_aware: bool = True,
    vocabulary: str = "",
) -> EnginePool:
    """Leases on the replicas of a Draft or Target deployment."""
    make = PlacedServePool if prefix_aware else ServePool
    return make(handle, links, EngineReply, vocabulary)


def constraint_pool(handle: DeploymentHandle[Any], links: LinkClient) -> ConstraintPool:
    """Leases on the replicas of a Constraint deployment."""
    return ServePool(handle, links, ConstraintReply)
