"""A load that runs in a thread of its own, so that code that watches a service may block."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Coroutine
from typing import Any

_END_LIMIT_S = 900.0  # the longest whole answer of a request (`request_timeout_s` in prod.yaml)


class LoadThread:
    """Runs one coroutine in an event loop of its own; it can be begun again when it has ended.

    Args:
        name: of the thread.
        load: makes the coroutine. It is to return soon after `is_stopping` has become true.
        end_limit_s: how long it may take for that.
    """

    def __init__(
        self,
        name: str,
        load: Callable[[], Coroutine[Any, Any, None]],
        *,
        end_limit_s: float = _END_LIMIT_S,
    ) -> None:
        self._name = name
        self._load = load
        self._end_limit_s = end_limit_s
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None
        self._error: Exception | None = None
        self.cpu_s = 0.0  # CPU time of the thread, once it has ended

    @property
    def is_stopping(self) -> bool:
        """True if the load is to end."""
        return self._stopping.is_set()

    def start(self) -> None:
        """Begin."""
        self._stopping.clear()
        # A daemon: a load that does not end must not keep the command from ending.
        self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Let the load come to its end, and wait for that. Idempotent.

        Raises:
            RuntimeError: it failed, or did not end within its limit.
        """
        self._stopping.set()
        if self._thread is not None:
            self._thread.join(self._end_limit_s)
            if self._thread.is_alive():
                raise RuntimeError(f"the load did not end within {self._end_limit_s:g} s")
            self._thread = None
        if self._error is not None:
            raise RuntimeError("the load itself failed") from self._error

    def _run(self) -> None:
        try:
            asyncio.run(self._load())
        except Exception as error:  # noqa: BLE001  # raised by `stop`, in a thread that can
            self._error = error
        self.cpu_s = time.thread_time()
