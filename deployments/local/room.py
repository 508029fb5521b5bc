"""Room on an engine for whole answers, so that none that runs loses its KV blocks to another.

A server cannot wait for that: it lets sessions in and takes blocks back when they run out. A batch
can, and is faster for it, because nothing is computed twice.
"""

from __future__ import annotations

import asyncio

from models.engine.load import EngineLoad
from router.types import GenerationRequest


class Room:
    """Places for sessions and KV blocks for their longest texts.

    Args:
        load: of the engine, empty; says how many blocks there are, and their tokens.
        num_places: sessions at a time.
    """

    def __init__(self, load: EngineLoad, num_places: int) -> None:
        self._num_blocks = self._free_blocks = load.num_blocks
        self._block_size = load.block_size
        self._num_places = self._free_places = num_places
        self._freed = asyncio.Event()

    async def enter(self, request: GenerationRequest) -> None:
        """Wait for room for a request, however long it takes; `leave` gives it back."""
        num_places, num_blocks = self._needed(request)
        while self._free_places < num_places or self._free_blocks < num_blocks:
            self._freed.clear()
            await self._freed.wait()
        self._free_places -= num_places
        self._free_blocks -= num_blocks

    def leave(self, request: GenerationRequest) -> None:
        """Give back what `enter` took."""
        num_places, num_blocks = self._needed(request)
        self._free_places += num_places
        self._free_blocks += num_blocks
        self._freed.set()

    def _needed(self, request: GenerationRequest) -> tuple[int, int]:
        """Places and blocks, at most all there are: of the text, and of each of its roll-outs."""
        num_tokens = len(request.prompt_ids) + request.max_tokens
        num_sessions = 1 + (0 if request.lookahead is None else request.lookahead.num_rollouts)
        num_blocks = num_sessions * -(-num_tokens // self._block_size)
        return min(num_sessions, self._num_places), min(num_blocks, self._num_blocks)
