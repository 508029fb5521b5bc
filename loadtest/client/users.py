"""Users without think time who keep every place of a service taken.

They run in an event loop in a thread of their own, each repeating: ask, read, ask again. A user who
is turned away comes back after the seconds of Retry-After. Whatever else goes wrong is a failure.
"""

from __future__ import annotations

import asyncio
import random

from loadtest.client.answers import Answer
from loadtest.client.client import LoadClient, Reply
from loadtest.client.streams import Failure
from loadtest.client.thread import LoadThread
from loadtest.client.workload import Workload

_START_SPREAD_S = 0.05  # between two users' first requests, so that they do not move in step


class Users:
    """Implements `loadtest.trial.scene.Load`; `replies` has every answer.

    Args:
        base_url: of the service.
        workload: what they ask.
        num_users: how many there are.
        seed: of what each asks when.
        expects_same_text: a request that comes again must get the same text.
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
        self.base_url = base_url
        self._workload = workload
        self._known: dict[str, Answer] | None = {} if expects_same_text else None
        self.num_streams = num_users
        self._seed = seed
        self._thread = LoadThread("users", self._run_users)
        self._num_taken = 0
        self.replies: list[Reply] = []

    @property
    def cpu_s(self) -> float:
        """CPU time of the load's own thread, once it has ended."""
        return self._thread.cpu_s

    @property
    def num_answers(self) -> int:
        """Requests that came to an end."""
        return len(self.replies)

    def prepare(self) -> dict[str, Answer]:
        """Return nothing: the first right answer to a request is that of all later ones."""
        return {}

    def start(self) -> None:
        """Begin all users."""
        self._thread.start()

    def stop(self) -> None:
        """Let every user finish what it has asked; see `LoadThread.stop`."""
        self._thread.stop()

    def wait_steady(self, limit_s: float) -> bool:
        """Return True: users who are turned away stand still, and should."""
        return True

    def figures(self, from_s: float, to_s: float) -> dict[str, float]:
        """Return nothing: users come and go, so none of them has a pause."""
        return {}

    def waits(self, from_s: float, to_s: float) -> list[tuple[str, float, float]]:
        """Return nothing, as `figures`."""
        return []

    def take_failures(self) -> list[Failure]:
        """Return the failures since the last call."""
        new, self._num_taken = self.replies[self._num_taken :], len(self.replies)
        return [
            Failure(one.name, one.began_s, one.ended_s, one.complaint, one.status)
            for one in new
            if one.complaint
        ]

    async def _run_users(self) -> None:
        client = LoadClient(self.base_url, self._known)
        async with client, asyncio.TaskGroup() as users:
            for number in range(self.num_streams):
                users.create_task(self._run_user(client, number))

    async def _run_user(self, client: LoadClient, number: int) -> None:
        await asyncio.sleep(_START_SPREAD_S * number)
        for asking in self._workload.mixed(random.Random(f"{self._seed}-user-{number}")):
            if self._thread.is_stopping:
                return
            reply = await client.ask(asking)
            self.replies.append(reply)
            if reply.retry_after_s is not None:
                await asyncio.sleep(reply.retry_after_s)
