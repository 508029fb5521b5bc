"""A whole constraint replica behind its socket: which messages it passes over."""

import asyncio

from deployments.link.client import LinkClient
from loadtest.fuzz.links.world import constraint_replica
from models.protocol.messages import (
    ConstraintReply,
    Grammar,
    GrammarCommit,
    GrammarCommitted,
    GrammarOpen,
    GrammarReady,
    LeaseRequest,
)
from models.protocol.token_sequence import EMPTY_HASH

WAIT_S = 60.0  # children start meanwhile


async def test_a_grammar_for_an_earlier_process_is_passed_over() -> None:
    """It would be opened for nobody: its session closes it by the epoch of the earlier process."""
    links = LinkClient()
    async with asyncio.timeout(WAIT_S), constraint_replica() as replica:
        lease = replica.lease(LeaseRequest(session_id="s", public_key=links.public_key))
        endpoint = (await anext(lease)).endpoint
        channel = links.channel(endpoint, "s", ConstraintReply)
        for epoch in (endpoint.epoch - 1, endpoint.epoch):  # read in this order
            grammar = Grammar(kind="regex", text="a+")
            channel.send(GrammarOpen(session_id="s", epoch=epoch, grammar=grammar))
        head = {"seq": 1, "base_len": 0, "prefix_hash": EMPTY_HASH}
        channel.send(GrammarCommit(session_id="s", epoch=endpoint.epoch, tokens=[], **head))
        assert isinstance(await channel.receive(), GrammarReady)
        assert isinstance(await channel.receive(), GrammarCommitted)
        channel.close()
        await lease.aclose()
    await links.close()
