"""A mailbox shows what it would give out at once, and nothing once it is lost."""

from __future__ import annotations

import pytest

from deployments.link.mailbox import Mailbox
from models.protocol.errors import LinkLost


async def test_it_shows_the_next_reply_and_keeps_it() -> None:
    mailbox: Mailbox[str] = Mailbox()
    assert mailbox.peek() is None
    mailbox.put("a")
    mailbox.put("b")
    assert (mailbox.peek(), mailbox.peek()) == ("a", "a")
    assert await mailbox.get() == "a"
    assert mailbox.peek() == "b"


async def test_a_lost_one_shows_nothing_of_what_it_holds() -> None:
    mailbox: Mailbox[str] = Mailbox()
    mailbox.put("a")
    mailbox.mark_lost("gone")
    assert mailbox.peek() is None
    with pytest.raises(LinkLost):
        await mailbox.get()


async def test_a_full_one_drops_the_oldest() -> None:
    mailbox: Mailbox[int] = Mailbox(max_unread=2)
    for number in range(4):
        mailbox.put(number)
    assert mailbox.peek() == 2
    assert [await mailbox.get(), await mailbox.get()] == [2, 3]
