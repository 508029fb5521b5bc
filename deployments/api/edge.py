"""The edge of HTTP: request ids, bodies within their limit, every error in OpenAI's shape."""

from __future__ import annotations

import asyncio
import re
import uuid
from collections.abc import Awaitable
from typing import TypeVar

from starlette.datastructures import MutableHeaders
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from deployments.api.request_log import RequestRecord
from deployments.api.schemas.requests import BodyTooLarge, ErrorAnswer, RouteError, answer_error
from deployments.api.transport.encodings import decoder_of
from deployments.api.writing.sse import disconnected
from models.protocol.errors import InternalError, ServingError

Result = TypeVar("Result")

_MAX_LENGTH_DIGITS = 18
_SANE_REQUEST_ID = re.compile(r"[A-Za-z0-9._:-]{1,128}")


class ClientGone(Exception):
    """The client went away before there was an answer; nobody is left to answer."""


class Edge:
    """Outermost layer: request ids, and every error in OpenAI's shape."""

    def __init__(self, app: ASGIApp, *, sends_request_id: bool) -> None:
        self._app = app
        self._sends_request_id = sends_request_id

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        record = RequestRecord(_request_id(scope), scope)
        scope.setdefault("state", {})["record"] = record
        has_started = False

        async def send_with_id(message: Message) -> None:
            nonlocal has_started
            if message["type"] == "http.response.start":
                has_started = True
                if self._sends_request_id:
                    MutableHeaders(scope=message)["x-request-id"] = record.request_id
            await send(message)

        try:
            await self._app(scope, receive, send_with_id)
        except ClientGone:
            record.leave()
        except Exception as error:
            if has_started:
                record.fail(error, 500)
                raise
            response = _error_response(error, record)
            await response(scope, receive, send_with_id)
        finally:
            record.write()


def _request_id(scope: Scope) -> str:
    for name, value in scope["headers"]:
        if name == b"x-request-id":
            given = value.decode("latin-1")
            if _SANE_REQUEST_ID.fullmatch(given):
                return str(given)
    return f"req-{uuid.uuid4().hex}"


def _answer(error: Exception, record: RequestRecord) -> ErrorAnswer:
    """Return the client's answer for an error.

    The log has its cause.
    """
    known = error if isinstance(error, ServingError) else InternalError("unexpected error")
    answer = answer_error(known, record.request_id)
    record.fail(error, answer.status)
    return answer


def error_body(record: RequestRecord, error: Exception) -> bytes:
    """Return the event that ends a broken stream."""
    return _answer(error, record).body.to_json()


def _error_response(error: Exception, record: RequestRecord) -> Response:
    answer = _answer(error, record)
    response = json_response(answer.body.to_json(), answer.status)
    response.headers.update(answer.headers)
    return response


async def answer_http_exception(request: Request, error: Exception) -> Response:
    """Starlette's own refusals: no such route (404), wrong method (405)."""
    status = error.status_code if isinstance(error, HTTPException) else 500
    what = f"{request.method} {request.url.path}"
    message = f"{what}: method not allowed" if status == 405 else f"{what}: no such route"
    response = _error_response(RouteError(message, status=status), request.state.record)
    if isinstance(error, HTTPException):
        response.headers.update(error.headers or {})
    return response


async def read_body(request: Request, limit_bytes: int) -> bytes:
    """Return the body, decoded; give it up as soon as it is too long, decoded or not.

    Raises:
        BodyTooLarge: by its header or by what arrived.
        ClientGone: the client went away within it.
        InvalidRequest: it is not encoded as its header says, or in a way that is not taken.
    """
    _check_declared(request.headers.get("content-length", ""), limit_bytes)
    decoder = decoder_of(request.headers.getlist("content-encoding"), limit_bytes)
    body, num_received = bytearray(), 0
    while True:
        message = await request.receive()
        if message["type"] == "http.disconnect":
            raise ClientGone
        chunk = message.get("body", b"")
        num_received += len(chunk)
        if num_received > limit_bytes:
            raise BodyTooLarge(f"the body is longer than the limit of {limit_bytes} bytes")
        body += await decoder.feed(chunk)
        if not message.get("more_body", False):
            decoder.finish()
            return bytes(body)


def _check_declared(length: str, limit_bytes: int) -> None:
    # Python reads no number of thousands of digits; no body has so many bytes.
    is_long = len(length) > _MAX_LENGTH_DIGITS
    if length.isdecimal() and (is_long or int(length) > limit_bytes):
        shown = f"{length[:_MAX_LENGTH_DIGITS]}..." if is_long else length
        raise BodyTooLarge(f"the body has {shown} bytes, the limit is {limit_bytes}")


async def until_disconnect(request: Request, work: Awaitable[Result]) -> Result:
    """Return the result of `work`.

    It is cancelled if the client leaves first.

    Raises:
        ClientGone: it did.
    """
    task = asyncio.ensure_future(work)
    gone = asyncio.create_task(disconnected(request.receive), name="http-disconnect")
    try:
        await asyncio.wait({task, gone}, return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise ClientGone
        return task.result()
    finally:
        task.cancel()
        gone.cancel()
        await asyncio.gather(task, gone, return_exceptions=True)


def json_response(body: bytes, status: int = 200) -> Response:
    """JSON bytes as an answer."""
    return Response(body, status_code=status, media_type="application/json")
