"""Keeps answers of real requests to train drafters on: off unless a folder is named.

A line is `{"prompt_ids": [...], "answer_ids": [...]}`, what `python -m models.distill --answers`
reads. Each router writes files of its own that only their owner may read. The oldest are deleted
when the folder's files take more than is allowed, or are too old. A thread of its own writes, so a
slow disk holds up no stream. Answers are then left out and counted.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import queue
import threading
import time
from collections.abc import AsyncGenerator
from contextlib import aclosing
from pathlib import Path

from deployments.config.schema import CaptureConfig
from router.types import Delta, Detokenizer, Finished, GenerationRequest, Generator

logger = logging.getLogger("ray.serve")

_FILES_AT_ONCE = 8  # a file is full at a part of what the folder may hold, and as old at that part
_MAX_WAITING = 256  # answers that wait for the disk
_MIB = 1 << 20
_NAMES = "answers-*.jsonl"


class Capture:
    """Files of answers in one folder.

    Args:
        config: with a folder.

    Attributes:
        num_lost: answers that were left out because the disk was slow or refused them.

    Raises:
        ValueError: the folder cannot be written to.
    """

    def __init__(self, config: CaptureConfig) -> None:
        self._folder = Path(config.folder)
        self._max_bytes = config.max_size_mib * _MIB
        self._max_age_s = config.max_age_hours * 3600.0
        self.num_lost = 0
        try:
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._tidy()
            self._begin_file()
        except OSError as error:
            raise ValueError(f"router.capture.folder: cannot be written to: {error}") from None
        self._waiting: queue.Queue[bytes | None] = queue.Queue(_MAX_WAITING)
        self._thread = threading.Thread(target=self._write_all, name="capture", daemon=True)
        self._thread.start()

    def keep(self, prompt_ids: tuple[int, ...], answer_ids: list[int]) -> None:
        """Have one answer written soon."""
        line = json.dumps({"prompt_ids": prompt_ids, "answer_ids": answer_ids}) + "\n"
        try:
            self._waiting.put_nowait(line.encode())
        except queue.Full:
            self._lose("the disk is too slow")

    def close(self, timeout_s: float = 5.0) -> None:
        """Write what waits, for a bounded time. Blocks."""
        try:
            self._waiting.put(None, timeout=timeout_s)
        except queue.Full:
            return
        self._thread.join(timeout_s)

    def _write_all(self) -> None:
        while (line := self._waiting.get()) is not None:
            try:
                self._write(line)
            except OSError as error:
                self._lose(error)

    def _lose(self, why: object) -> None:
        self.num_lost += 1
        if self.num_lost & (self.num_lost - 1) == 0:  # 1, 2, 4, 8, ...
            logger.warning("answers not kept in %s: %d, %s", self._folder, self.num_lost, why)

    def _write(self, line: bytes) -> None:
        is_full = self._size + len(line) > self._max_bytes // _FILES_AT_ONCE or (
            time.time() - self._begun_s > self._max_age_s / _FILES_AT_ONCE
        )
        if is_full:
            self._begin_file()
        try:
            with open(self._path, "ab", opener=_private) as file:
                file.write(line)
            self._size += len(line)
        finally:  # only now: it may fail, and a full disk needs it all the same
            if is_full:
                self._tidy()

    def _begin_file(self) -> None:
        self._begun_s, self._size = time.time(), 0
        self._path = self._folder / f"answers-{time.time_ns()}-{os.getpid()}.jsonl"
        with open(self._path, "ab", opener=_private):
            pass

    def _tidy(self) -> None:
        """Delete files that are too old, then the oldest while there is too much."""
        left = self._max_bytes * (_FILES_AT_ONCE - 1) // _FILES_AT_ONCE
        newest_first = sorted(self._folder.glob(_NAMES), reverse=True)
        for path in newest_first:
            with contextlib.suppress(FileNotFoundError):  # another router has deleted it
                found = path.stat()
                left -= found.st_size
                is_old = time.time() - found.st_mtime > self._max_age_s
                if is_old or left < 0:
                    path.unlink()


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


class CapturingGenerator:
    """A `Generator` whose answers are kept.

    Args:
        inner: what generates.
        capture: where they go.
    """

    def __init__(self, inner: Generator, capture: Capture) -> None:
        self._inner, self._capture = inner, capture

    async def generate(
        self, request: GenerationRequest, detokenizer: Detokenizer
    ) -> AsyncGenerator[Delta | Finished, None]:
        """See `Generator.generate`.

        Answers that have ended as they should are kept, choices and look-aheads aside. A text out
        of a list, or steered by a reward, is not the model's own.
        """
        answer_ids: list[int] = []
        async with aclosing(self._inner.generate(request, detokenizer)) as events:
            async for event in events:
                if isinstance(event, Delta):
                    answer_ids.extend(event.token_ids)
                elif answer_ids and not request.choices and request.lookahead is None:
                    self._capture.keep(request.prompt_ids, answer_ids)
                yield event
