"""Part `frames`: no frame of an allowed peer ends an engine or a link, or leaves anything held.

One peer sends such frames to target, draft and constraint replica. Another one is served over the
same sockets meanwhile, and gets the text that it gets without them.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from contextlib import AsyncExitStack
from functools import partial
from typing import Any

import zmq

from deployments.constraint.replica import ConstraintReplica
from deployments.link.client import LinkClient
from deployments.link.frames import KeyPair, configure_client
from loadtest.fuzz.cases import Outcome
from loadtest.fuzz.engines.answers import answer_of, difference
from loadtest.fuzz.engines.pair import MAX_MODEL_LEN, with_grammars
from loadtest.fuzz.engines.part import answers_alone
from loadtest.fuzz.engines.requests import random_requests
from loadtest.fuzz.links.frames import constraint_messages, engine_messages, random_frame
from loadtest.fuzz.links.world import (
    EngineCalls,
    LinkEngine,
    ReplicaCalls,
    constraint_replica,
    link_engines,
)
from models.grammar.host import GrammarHost
from models.protocol.messages import Endpoint, LeaseRequest
from models.protocol.rules import COUPLED
from router.drafters.draft_model import POOL
from router.generator import SpeculativeGenerator
from router.limits import SessionLimits
from router.services import Services

_NUM_REQUESTS = 2
_NUM_FRAMES = 1000  # to each: thousands showed what a few tens did not
_NUM_SESSIONS = 3  # the attacker's own
_CONNECTED_MS = 5000
_SERVED_S = 30.0
_FREED_LIMIT_S = 10.0
# A served peer that waits for longer than this has been forgotten.
LIMITS = SessionLimits(failover_s=5.0, max_losses=2, first_token_s=15.0, token_gap_s=15.0)


async def _case(seed: int, host: GrammarHost) -> Outcome:
    rng = random.Random(seed)
    requests = random_requests(rng, _NUM_REQUESTS, verification=COUPLED.name)
    expected = await answers_alone(requests, host)
    outcome = Outcome()
    outcome.counts["cases"] += 1
    async with AsyncExitStack() as stack:
        target, draft = await stack.enter_async_context(link_engines())
        replica = await stack.enter_async_context(constraint_replica())
        links = LinkClient()
        stack.push_async_callback(links.close)
        services = Services(
            target_pool=EngineCalls(target, links),
            draft_pools={POOL: EngineCalls(draft, links)},
            constraint_pool=ReplicaCalls(replica, links),
            limits=LIMITS,
        )
        generator = SpeculativeGenerator(services, max_model_len=MAX_MODEL_LEN)
        attack = asyncio.create_task(_attack(rng, target, draft, replica), name="fuzz-attack")
        try:
            async with asyncio.timeout(_SERVED_S):
                answers = await asyncio.gather(
                    *(answer_of(generator, request) for request in requests)
                )
        except TimeoutError:
            answers = []
            outcome.complaints.append(f"the other peer is not served within {_SERVED_S:g} s")
        outcome.counts["frames"] += await attack
        for request, alone, answer in zip(requests, expected, answers, strict=False):
            outcome.counts["compared"] += 1
            outcome.complaints += difference(request.request_id, alone, answer)
        outcome.complaints += await _left(target, draft, replica)
    return outcome


open_frames = with_grammars(_case)


async def _attack(
    rng: random.Random, target: LinkEngine, draft: LinkEngine, replica: ConstraintReplica
) -> int:
    """Lease, send frames, end the leases; the number of frames."""
    session_ids = [f"attack-{i}" for i in range(_NUM_SESSIONS)]
    names = [*session_ids, "nobody's"]
    keys = KeyPair.generate()
    sent = 0
    for engine in (target, draft):
        engine.allow(keys.public_key)
        leases = [(name, engine.loop.leases.grant(name)) for name in session_ids]
        make = partial(engine_messages, rng, engine.grant.endpoint.epoch, names)
        sent += await _send(rng, keys, engine.grant.endpoint, make)
        for name, lease_id in leases:
            engine.loop.release(name, lease_id)
    streams = [
        replica.lease(LeaseRequest(session_id=name, public_key=keys.public_key))
        for name in session_ids
    ]
    grants = [await anext(stream) for stream in streams]
    make = partial(constraint_messages, rng, grants[0].endpoint.epoch, names)
    sent += await _send(rng, keys, grants[0].endpoint, make)
    for stream in streams:
        await stream.aclose()
    return sent


async def _send(
    rng: random.Random, keys: KeyPair, endpoint: Endpoint, make: Callable[[], list[Any]]
) -> int:
    """Send frames over a connection of their own, and see what comes back."""
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    socket = context.socket(zmq.DEALER)
    try:
        configure_client(socket, keys, endpoint.public_key, _NUM_FRAMES)
        socket.connect(endpoint.address)
        for _ in range(_NUM_FRAMES):
            await asyncio.to_thread(socket.poll, 1, zmq.POLLOUT)
            socket.send(random_frame(rng, make()), zmq.NOBLOCK)
        # Sent frames are read in order: once an answer has come back the rest is near.
        await asyncio.to_thread(socket.poll, _CONNECTED_MS, zmq.POLLIN)
        await asyncio.sleep(0.05)
    finally:
        socket.close(linger=0)
        context.term()
    return _NUM_FRAMES


async def _left(target: LinkEngine, draft: LinkEngine, replica: ConstraintReplica) -> list[str]:
    """Return the engines that died, and the resources held after all leases have ended."""
    deadline = asyncio.get_running_loop().time() + _FREED_LIMIT_S
    while True:
        held = [
            f"{name}: {stats.num_sessions} leases and {stats.num_used_blocks} KV blocks are held"
            for name, engine in (("target", target), ("draft", draft))
            if (stats := engine.loop.stats()).num_sessions or stats.num_used_blocks
        ]
        counters = await replica.stats()
        held += [
            f"constraint: {name} is {counters[name]:g}"
            for name in ("num_leases", "queue_length")
            if counters[name]
        ]
        deaths = [f"engine died: {engine.death}" for engine in (target, draft) if engine.death]
        try:
            await replica.check_health()
        except RuntimeError as error:
            deaths.append(str(error))
        if counters["restarts"]:
            deaths.append(f"constraint: {counters['restarts']:g} children ended")
        if deaths or not held or asyncio.get_running_loop().time() > deadline:
            return deaths + held
        await asyncio.sleep(0.02)
