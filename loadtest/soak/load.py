"""Users without think time who keep every place of a service taken.

They run in an event loop in a thread of their own, each repeating: ask, read, ask again. A user who
is turned away comes back after the seconds of Retry-After. Whatever else goes wrong is kept.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from dataclasses import dataclass, field

from loadtest.client.client import LoadClient, Reply
from loadtest.client.thread import LoadThread
from loadtest.client.workload import Workload

_KEPT_COMPLAINTS = 50
_START_SPREAD_S = 0.05  # between two users' first requests, so that they do not move in step


@dataclass
class Tally:
    """The outcomes of all requests so far."""

    ended: Counter[str] = field(default_factory=Counter)  # by name
    turned_away: Counter[str] = field(default_factory=Counter)
    failed: Counter[str] = field(default_factory=Counter)
    complaints: list[str] = field(default_factory=list)  # the first ones
    num_tokens: int = 0
    first_text_s: list[float] = field(default_factory=list)

    def add(self, reply: Reply) -> None:
        """Count one request."""
        self.ended[reply.name] += 1
        self.num_tokens += reply.num_tokens
        if reply.is_turned_away:
            self.turned_away[reply.name] += 1
        if reply.complaint:
            self.failed[reply.name] += 1
            if len(self.complaints) < _KEPT_COMPLAINTS:
                self.complaints.append(f"{reply.name}: {reply.complaint}")
        if reply.first_text_s is not None:
            self.first_text_s.append(reply.first_text_s - reply.began_s)


class SoakLoad:
    """Runs `num_users` users between `start` and `stop`.

    Args:
        base_url: of the service.
        workload: what they ask.
        num_users: how many there are.
        seed: of what each asks when.
        expects_same_text: see `LoadClient`.
    """

    def __init__(
        self,
        base_url: str,
        workload: Workload,
        *,
        num_users: int,
        seed: int,
        expects_same_text: bool,
    ) -> None:
        self._base_url = base_url
        self._workload = workload
        self._expects_same_text = expects_same_text
        self._num_users = num_users
        self._seed = seed
        self._thread = LoadThread("soak-load", self._run_users)
        self.tally = Tally()

    @property
    def cpu_s(self) -> float:
        """CPU time of the load's own thread, once it has ended."""
        return self._thread.cpu_s

    def start(self) -> None:
        """Begin all users."""
        self._thread.start()

    def stop(self) -> None:
        """Let every user finish what it has asked; see `LoadThread.stop`."""
        self._thread.stop()

    async def _run_users(self) -> None:
        client = LoadClient(self._base_url, expects_same_text=self._expects_same_text)
        async with client, asyncio.TaskGroup() as users:
            for number in range(self._num_users):
                users.create_task(self._run_user(client, number))

    async def _run_user(self, client: LoadClient, number: int) -> None:
        await asyncio.sleep(_START_SPREAD_S * number)
        for asking in self._workload.mixed(random.Random(f"{self._seed}-user-{number}")):
            if self._thread.is_stopping:
                return
            reply = await client.ask(asking)
            self.tally.add(reply)
            if reply.retry_after_s is not None:
                await asyncio.sleep(reply.retry_after_s)
