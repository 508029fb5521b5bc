"""Sends the requests of a workload and reports how each went, for the trials `soak` and `overload`.

A refusal with 429 and Retry-After is a valid answer. Any other deviation from the required answer
is a complaint.
"""

from __future__ import annotations

from collections.abc import MutableMapping
from dataclasses import dataclass

import httpx

from loadtest.client.answers import Answer, check_asked
from loadtest.client.http import ask, open_client
from loadtest.client.workload import Asking


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """The outcome of one request; times are from `time.perf_counter`.

    Attributes:
        name: what it was counted as.
        began_s, ended_s: when it was sent and when the last of its answer had come.
        status: of the HTTP answer; 0 when there was none.
        complaint: what is wrong with the answer; "" when nothing is.
        retry_after_s: when to come back, of an answer with status 429.
        first_text_s: when the first text came; None: none did.
        num_tokens: completion tokens of a stream that was read to its end.
        is_whole: a good request was answered to its end, and rightly.
    """

    name: str
    began_s: float
    ended_s: float
    status: int
    complaint: str
    retry_after_s: float | None = None
    first_text_s: float | None = None
    num_tokens: int = 0
    is_whole: bool = False

    @property
    def is_turned_away(self) -> bool:
        """True if the service was full and said when to come back."""
        return self.status == httpx.codes.TOO_MANY_REQUESTS and not self.complaint


class LoadClient:
    """Sends requests to one service. Use as an async context manager.

    Args:
        base_url: of the service, without /v1.
        known: texts so far, which a request that comes again must get; None: it may get others.
        api_key: see `open_client`.
    """

    def __init__(
        self, base_url: str, known: MutableMapping[str, Answer] | None, *, api_key: str = ""
    ) -> None:
        self._known = known
        self._client = open_client(base_url, api_key=api_key)

    async def __aenter__(self) -> LoadClient:
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self._client.aclose()

    async def ask(self, asking: Asking) -> Reply:
        """Send one request and read what comes. Never raises for what the service does."""
        answer = await ask(self._client, asking.request.body, leave_after=asking.leave_after)
        is_full = answer.status == httpx.codes.TOO_MANY_REQUESTS
        if is_full:
            missing = f"429 without seconds in Retry-After: {answer.content[:200]}"
            complaint = "" if answer.retry_after_s is not None else missing
        else:
            complaint = check_asked(asking, answer, self._known)
        is_good = asking.request.bad_field is None and asking.leave_after is None
        return Reply(
            name=asking.name,
            began_s=answer.began_s,
            ended_s=answer.ended_s,
            status=answer.status,
            complaint=complaint,
            retry_after_s=answer.retry_after_s if is_full else None,
            first_text_s=answer.first_text_s,
            num_tokens=answer.num_completion_tokens,
            is_whole=is_good and not is_full and not complaint,
        )
