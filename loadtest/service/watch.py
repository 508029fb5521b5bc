"""Looks at a service again and again, in a thread of its own, while a load runs."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Generic, TypeVar

_END_LIMIT_S = 60.0

Look = TypeVar("Look")


class Watch(Generic[Look]):
    """Looks every `period_s`, from `start` to `stop`.

    Args:
        period_s: from the begin of a look to that of the next.
        look: takes the seconds since the start.
    """

    def __init__(self, period_s: float, look: Callable[[float], Look]) -> None:
        self.period_s = period_s
        self.look = look
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="watch", daemon=True)
        self.samples: list[Look] = []
        self.errors: list[str] = []  # looks that failed

    def start(self) -> None:
        """Begin; the first look is taken at once."""
        self.began_s = time.monotonic()
        self._thread.start()

    def stop(self) -> None:
        """End. Idempotent."""
        self._stopping.set()
        self._thread.join(_END_LIMIT_S)  # time of one look; the thread is a daemon

    def wait(self, is_reached: Callable[[Look], bool], limit_s: float) -> bool:
        """Wait for a look of which that is true; False when none comes within `limit_s`."""
        deadline = time.monotonic() + limit_s
        while time.monotonic() < deadline:
            if self.samples and is_reached(self.samples[-1]):
                return True
            time.sleep(self.period_s / 4)
        return False

    def _run(self) -> None:
        while not self._stopping.is_set():
            at_s = time.monotonic() - self.began_s
            try:
                self.samples.append(self.look(at_s))
            except Exception as error:  # noqa: BLE001  # a look that fails must end no trial
                self.errors.append(f"at {at_s:.0f} s: {type(error).__name__}: {error}")
            spent_s = time.monotonic() - self.began_s - at_s
            self._stopping.wait(max(0.0, self.period_s - spent_s))
