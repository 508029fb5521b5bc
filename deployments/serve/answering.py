"""Serve's choice of a replica, with a limit on how long a replica may take to accept a request.

Serve waits without limit for the replica it has chosen to accept or refuse a request. A replica
whose process is stopped does neither, and it goes on being chosen. Serve keeps the last queue
length that it knows. The replica looks emptier than all others as its requests are lost one by one.
Here a choice that has not answered within `ANSWER_LIMIT_S` counts as unavailable. Serve then
forgets its queue length, so it is no choice until it answers a probe. Serve chooses again for the
same request, which keeps its place in the queue.

Ray calls this in the process that holds the handle: a proxy, or a router. The interface is Ray's
alpha (`ray.serve.request_router`); Ray's version is pinned. Serve pickles this module by value.
Serve's default is a whole package, and a replica tells a new controller 119 KB of itself. So much
goes through Ray's object stores. After the head's death they do not find each other for a minute.
Serve kills a replica that has told nothing after 30 s. HAProxy would refuse any but the default.
"""

from __future__ import annotations

import asyncio
from typing import Any

from ray.exceptions import ActorUnavailableError
from ray.serve.request_router import PendingRequest, RunningReplica

from deployments.serve.private import power_of_two_choices

# Accepting takes milliseconds, on an overloaded laptop tenths; a longer wait would cost each
# session that meets a stopped replica a noticeable pause, a shorter one doubles leases for nothing.
ANSWER_LIMIT_S = 3.0
ANSWERING_ROUTER = f"{__name__}:AnsweringRouter"  # as Serve's configs name it


class AnsweringReplica(RunningReplica):
    """A replica as the request router sees it: it accepts or refuses in time, or is unavailable."""

    def try_send_request(self, pr: PendingRequest, with_rejection: bool) -> Any:
        """See `RunningReplica.try_send_request`; the result's `get_rejection_response` raises
        ActorUnavailableError, which Serve handles, after `ANSWER_LIMIT_S`."""
        result: Any = super().try_send_request(pr, with_rejection)
        answer = result.get_rejection_response

        async def answer_in_time() -> Any:
            try:
                async with asyncio.timeout(ANSWER_LIMIT_S):
                    return await answer()  # cancels the request when it is cancelled itself
            except TimeoutError:
                reason = f"no answer to a request within {ANSWER_LIMIT_S:g} s"
                raise ActorUnavailableError(reason, self.actor_id.binary()) from None

        result.get_rejection_response = answer_in_time
        return result


_PowerOfTwoChoices: Any = power_of_two_choices()


class AnsweringRouter(_PowerOfTwoChoices):
    """The request router of deployments that Serve's proxies call."""

    def create_replica_wrapper(self, replica_info: Any) -> RunningReplica:
        """See `RequestRouter.create_replica_wrapper`."""
        return AnsweringReplica(replica_info)
