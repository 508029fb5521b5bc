"""Users without think time who keep every place of a service taken.

They run in an event loop in a thread of their own, each repeating: ask, read, ask again. A user who
is turned away comes back after the seconds of Retry-After. Whatever else goes wrong is a failure.
"""

from __future__ import annotations

import asyncio
import random

from loadtest.client.answers import Answer
from loadtest.client.client import LoadClient, Reply
from loadtest.client.streams import Failure, Load
from loadtest.client.workload import Workload

_START_SPREAD_S = 0.05  # between two users' first requests, so that they do not move in step


class Users(Load):
    """Users of a workload; `replies` has every answer, in order of its end.

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
        super().__init__(base_url)
        self._workload = workload
        self._known: dict[str, Answer] | None = {} if expects_same_text else None
        self.num_streams = num_users
        self._seed = seed
        self._num_taken = 0
        self.replies: list[Reply] = []

    @property
    def num_answers(self) -> int:
        """See `Load`."""
        return len(self.replies)

    def take_failures(self) -> list[Failure]:
        """See `Load`."""
        new, self._num_taken = self.replies[self._num_taken :], len(self.replies)
        return [
            Failure(one.name, one.began_s, one.ended_s, one.complaint, one.status)
            for one in new
            if one.complaint
        ]

    async def _run(self) -> None:
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
