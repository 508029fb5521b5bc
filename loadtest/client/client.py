"""Asks a served model over HTTP and says how each request went. asyncio and httpx, no locust.

For commands that drive a service themselves (`soak`, `overload`). Being turned away (429 with
Retry-After) is an answer like another; everything else that is not what the request must get is a
complaint.
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass

import httpx

from loadtest.client.answers import Judge, StreamedAnswer
from loadtest.client.workload import Asking

_PATH = "/v1/chat/completions"
_CONNECT_TIMEOUT_S = 30.0
_READ_TIMEOUT_S = 300.0  # between two pieces of an answer


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """How one request went. Times by `time.perf_counter`.

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
        """Whether the service was full and said when to come back."""
        return self.status == httpx.codes.TOO_MANY_REQUESTS and not self.complaint


class LoadClient:
    """Sends requests to one service. Use as an async context manager.

    Args:
        base_url: of the service, without /v1.
        judge: tells wrong answers from right ones.
    """

    def __init__(self, base_url: str, judge: Judge) -> None:
        self._judge = judge
        self._client = httpx.AsyncClient(
            base_url=base_url,
            headers={"authorization": f"Bearer {os.environ.get('OUTRIDER_API_KEY', 'none')}"},
            timeout=httpx.Timeout(_CONNECT_TIMEOUT_S, read=_READ_TIMEOUT_S),
            # Every request has a connection; a shared pool must not make them queue for one.
            limits=httpx.Limits(max_connections=None, max_keepalive_connections=64),
        )

    async def __aenter__(self) -> LoadClient:
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self._client.aclose()

    async def ask(self, asking: Asking) -> Reply:
        """Send one request and read what comes. Never raises for what the service does."""
        began_s = time.perf_counter()
        try:
            async with self._client.stream("POST", _PATH, json=asking.request.body) as response:
                if response.status_code == httpx.codes.OK and asking.request.bad_field is None:
                    return await self._read(asking, response, began_s)
                content = (await response.aread()).decode(errors="replace")
                return self._refused(asking, response, content, began_s)
        except (httpx.HTTPError, OSError, ValueError) as error:
            complaint = f"{type(error).__name__}: {error}"
            return _reply(asking, began_s, 0, complaint)

    async def _read(self, asking: Asking, response: httpx.Response, began_s: float) -> Reply:
        answer = StreamedAnswer(began_s=began_s)
        number = 0
        async for line in response.aiter_lines():
            answer.take(line, time.perf_counter())
            if asking.leave_after is not None and number >= asking.leave_after:
                break  # the connection is closed, which is what the service notices
            number += 1
        has_left = asking.leave_after is not None
        complaint = "" if has_left else self._judge.complaint(asking.request, answer)
        return Reply(
            name=asking.name,
            began_s=began_s,
            ended_s=time.perf_counter(),
            status=response.status_code,
            complaint=complaint or (f"error event: {answer.error}" if answer.error else ""),
            first_text_s=answer.first_text_s,
            num_tokens=answer.num_completion_tokens,
            is_whole=not has_left and not complaint,
        )

    def _refused(
        self, asking: Asking, response: httpx.Response, content: str, began_s: float
    ) -> Reply:
        status = response.status_code
        if status == httpx.codes.TOO_MANY_REQUESTS:
            after = response.headers.get("retry-after", "")
            if after.isdecimal() and int(after) >= 1:
                return _reply(asking, began_s, status, "", float(after))
            return _reply(asking, began_s, status, f"429 with Retry-After {after!r}, not seconds")
        if asking.request.bad_field is None:
            complaint = f"status {status}: {content[:200]}"
        else:
            complaint = self._judge.refusal_complaint(asking.request, status, content)
        return _reply(asking, began_s, status, complaint)


def _reply(
    asking: Asking, began_s: float, status: int, complaint: str, retry_after_s: float | None = None
) -> Reply:
    return Reply(
        name=asking.name,
        began_s=began_s,
        ended_s=time.perf_counter(),
        status=status,
        complaint=complaint,
        retry_after_s=retry_after_s,
    )
