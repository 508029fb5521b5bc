"""Long work within the event loop, in slices of a few milliseconds between which others run.

A list of a hundred thousand logprobs takes a second to write. A thread would not help, because it
is Python, which holds the interpreter. All long work of a loop takes turns, a slice of one request
in each iteration. So many such requests stop the loop for no longer than one does.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Collection
from typing import TypeVar
from weakref import WeakKeyDictionary

Item = TypeVar("Item")

SLICE_S = 0.005  # far below the gap between two tokens
_NUM_AT_ONCE = 32  # items done at once: a text's next tokens, a millisecond at the most

_turns: WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Lock] = WeakKeyDictionary()


async def in_slices(items: Collection[Item], work: Callable[[Item], None]) -> None:
    """Do `work` for each item, in order. An item should take well below a slice."""
    if len(items) <= _NUM_AT_ONCE:
        for item in items:
            work(item)
        return
    turn = _turns.setdefault(asyncio.get_running_loop(), asyncio.Lock())
    remaining = iter(items)
    while True:
        async with turn:
            end_s = time.perf_counter() + SLICE_S
            for item in remaining:
                work(item)
                if time.perf_counter() >= end_s:
                    break
            else:
                return
            await asyncio.sleep(0)  # with the turn in hand: no other takes one in this iteration
