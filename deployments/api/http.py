"""The HTTP routes: OpenAI's chat and text completions, models, health. No Ray inside.

A request for which there is no room is refused unread. Others are read within the body limit,
parsed (`bodies.py`), tokenised (`requests.py`), run by the `Generator`, and written (`answers.py`,
`sse.py`). The first item of the generator is awaited before anything is sent, so whatever fails up
to then has its proper status; later errors end the stream with an error event. A client that goes
away ends the generation wherever it stands.
Every request leaves one line in the log (`request_log.py`).
Every answer has the header `x-request-id`, the client's own one where it sent a sane one.
"""

from __future__ import annotations

import asyncio
import re
import time
import uuid
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from typing import TypeVar, cast

from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, Response
from starlette.datastructures import MutableHeaders
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from deployments.api.answers import ModelCard, ModelList
from deployments.api.bodies import parse
from deployments.api.choices import Items, choices_of, merged
from deployments.api.grammar_fields import asked_field, naming_field
from deployments.api.health import HealthProbe
from deployments.api.openai import (
    BodyTooLarge,
    ChatCompletionRequest,
    CompletionRequest,
    ErrorAnswer,
    GenerationFields,
    RouteError,
    answer_error,
)
from deployments.api.request_log import RequestRecord
from deployments.api.requests import ServedModel, prepare_chat, prepare_completion
from deployments.api.running import event_stream, first_item, whole_body
from deployments.api.sse import EventStream, disconnected
from deployments.api.writers import AnswerHead, ChatWriter, Echo, TextWriter, Writer
from deployments.api_keys import ApiKeys, KeyGate
from deployments.meters import CONTENT_TYPE
from models.errors import DeadlineExceeded, InternalError, ServingError
from router.generation import GenerationRequest, Generator

Result = TypeVar("Result")

_SANE_REQUEST_ID = re.compile(r"[A-Za-z0-9._:-]{1,128}")
# Tokenising this much takes about 5 ms; more is done in a thread, so that other streams flow on.
_INLINE_BODY_BYTES = 16_384


@dataclass(slots=True, kw_only=True)
class HttpService:
    """What the routes need. Model and limits may be replaced; requests from then on see them.

    Attributes:
        model: what is served, and what may be asked of it.
        generator: runs requests; admission included.
        refuse_when_full: raises what a request that comes now would be refused with for want of
            room, before anything is done for it.
        health: answers GET /health.
        metrics: what GET /metrics prints, Prometheus' text.
        other_metrics: of other processes, printed below it; no name is on both.
        api_keys: who may use the routes under /v1; None: everybody.
        body_limit_bytes: largest body accepted.
        body_timeout_s: how long a client may take to send its body.
        send_timeout_s: how long a client may keep a stream waiting for one write; behind Serve's
            proxy no write waits: it takes all and keeps it for the client.
    """

    model: ServedModel
    generator: Generator
    health: HealthProbe
    refuse_when_full: Callable[[], None] = lambda: None
    metrics: Callable[[], bytes] = bytes  # nothing to say
    other_metrics: Callable[[], Awaitable[bytes]] | None = None
    api_keys: ApiKeys | None = None
    body_limit_bytes: int = 1_048_576
    body_timeout_s: float = 30.0
    send_timeout_s: float = 60.0


@dataclass(frozen=True, slots=True)
class _Job:
    """One request, ready to run, and how its answer is written."""

    requests: list[GenerationRequest]  # one for each choice
    writer: Writer
    is_stream: bool
    after: tuple[int, ...]  # ids whose text the answer continues
    grammar_field: str | None  # that constrains the answer, as the client spelt it


class ClientGone(Exception):
    """The client went away before there was an answer; nobody is left to be told."""


def create_app(service: HttpService, *, sends_request_id: bool = True) -> FastAPI:
    """The ASGI application that serves `service`.

    `sends_request_id` False: the server around it writes the `x-request-id` of the request into
    the answer, as Serve's proxy does.
    """
    # The interactive docs would show none of our fields, which are not FastAPI's to parse.
    app = FastAPI(
        title="Outrider", docs_url=None, redoc_url=None, openapi_url=None, redirect_slashes=False
    )
    if service.api_keys is not None:
        app.add_middleware(KeyGate, keys=service.api_keys)
    app.add_middleware(_Edge, sends_request_id=sends_request_id)
    app.add_exception_handler(HTTPException, _answer_http_exception)
    routes = _Routes(service)
    app.add_api_route("/v1/chat/completions", routes.chat_completions, methods=["POST"])
    app.add_api_route("/v1/completions", routes.completions, methods=["POST"])
    app.add_api_route("/v1/models", routes.models, methods=["GET"])
    app.add_api_route("/v1/models/{name:path}", routes.model, methods=["GET"])
    app.add_api_route("/health", routes.health, methods=["GET"])
    app.add_api_route("/livez", routes.alive, methods=["GET"])
    app.add_api_route("/readyz", routes.health, methods=["GET"])
    app.add_api_route("/metrics", routes.metrics, methods=["GET"])
    app.add_api_route("/version", routes.version, methods=["GET"])
    return app


class _Routes:
    """One method per route."""

    def __init__(self, service: HttpService) -> None:
        self._service = service

    async def chat_completions(self, request: Request) -> Response:
        return await self._complete(request, _chat_job)

    async def completions(self, request: Request) -> Response:
        return await self._complete(request, _completion_job)

    async def models(self) -> Response:
        return _json(ModelList(data=[self._card()]).to_json())

    async def model(self, name: str) -> Response:
        self._service.model.check_name(name)
        return _json(self._card().to_json())

    async def health(self) -> Response:
        health = await self._service.health.check()
        content = {
            "status": "ok" if health.is_healthy else "unavailable",
            "model": self._service.model.name,
            "reason": health.reason,
            "round_ms": health.round_ms,
        }
        return JSONResponse(content, status_code=200 if health.is_healthy else 503)

    async def alive(self) -> Response:
        """This process answers; whether the engines do is what /readyz says."""
        return JSONResponse({"status": "ok"})

    async def metrics(self) -> Response:
        text = self._service.metrics()
        if self._service.other_metrics is not None:
            text += await self._service.other_metrics()
        return Response(text, headers={"content-type": CONTENT_TYPE})

    async def version(self) -> Response:
        return JSONResponse({"version": _version()})

    async def _body(self, request: Request) -> bytes:
        timeout_s = self._service.body_timeout_s
        try:
            async with asyncio.timeout(timeout_s):
                return await _read_body(request, self._service.body_limit_bytes)
        except TimeoutError:
            raise DeadlineExceeded(f"the body did not arrive within {timeout_s} s") from None

    def _card(self) -> ModelCard:
        model = self._service.model
        return ModelCard(id=model.name, created=model.created, max_model_len=model.max_model_len)

    async def _complete(
        self, request: Request, make_job: Callable[[bytes, ServedModel], _Job]
    ) -> Response:
        self._service.refuse_when_full()
        body = await self._body(request)
        if len(body) <= _INLINE_BODY_BYTES:
            job = make_job(body, self._service.model)
        else:
            job = await asyncio.to_thread(make_job, body, self._service.model)
        record: RequestRecord = request.state.record
        record.start(self._service.model.name, job.requests, is_stream=job.is_stream)
        items = record.watched(merged([self._choice(job, wanted) for wanted in job.requests]))
        num_choices = len(job.requests)
        if not job.is_stream:
            whole = whole_body(items, num_choices, job.writer)
            return _json(await _until_disconnect(request, whole))
        first = await _until_disconnect(request, first_item(items))
        error_body = partial(_error_body, record)
        return EventStream(
            event_stream(items, first, num_choices, job.writer, error_body),
            send_timeout_s=self._service.send_timeout_s,
        )

    def _choice(self, job: _Job, request: GenerationRequest) -> Items:
        detokenizer = self._service.model.tokenizer.detokenizer(job.after)
        items = cast("Items", self._service.generator.generate(request, detokenizer))
        return items if job.grammar_field is None else naming_field(items, job.grammar_field)


def _chat_job(body: bytes, model: ServedModel) -> _Job:
    asked = parse(body, ChatCompletionRequest)
    request = prepare_chat(asked, model, f"chatcmpl-{uuid.uuid4().hex}")
    writer = ChatWriter(_head(asked, request, model))
    requests = choices_of(request, asked.n, is_stream=asked.stream)
    return _Job(requests, writer, asked.stream, (), _grammar_field(asked))


def _completion_job(body: bytes, model: ServedModel) -> _Job:
    asked = parse(body, CompletionRequest)
    request = prepare_completion(asked, model, f"cmpl-{uuid.uuid4().hex}")
    writer = TextWriter(_head(asked, request, model), _echo(asked, request, model))
    requests = choices_of(request, asked.n, is_stream=asked.stream)
    return _Job(requests, writer, asked.stream, request.prompt_ids, _grammar_field(asked))


def _echo(asked: CompletionRequest, request: GenerationRequest, model: ServedModel) -> Echo | None:
    if not asked.echo:
        return None
    prompt = asked.prompt
    text = prompt if isinstance(prompt, str) else model.tokenizer.decode(prompt)
    return Echo(text=text, token_ids=request.prompt_ids)


def _grammar_field(asked: GenerationFields) -> str | None:
    return asked_field(asked.response_format, asked.structured_outputs)


def _head(
    asked: ChatCompletionRequest | CompletionRequest, request: GenerationRequest, model: ServedModel
) -> AnswerHead:
    options = asked.stream_options
    return AnswerHead(
        id=request.request_id,
        created=int(time.time()),
        model=asked.model,
        seed=request.sampling.seed,
        tokenizer=model.tokenizer,
        num_logprobs=request.sampling.num_logprobs,
        num_prompt_logprobs=-1 if asked.prompt_logprobs is None else asked.prompt_logprobs,
        include_usage=options is not None and options.include_usage,
    )


# --- running ------------------------------------------------------------------------------------


async def _until_disconnect(request: Request, work: Awaitable[Result]) -> Result:
    """The result of `work`, which is cancelled when the client goes away first.

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


# --- edge ---------------------------------------------------------------------------------------


class _Edge:
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
    """The error as the client is told; the log has its cause."""
    known = error if isinstance(error, ServingError) else InternalError("unexpected error")
    answer = answer_error(known, record.request_id)
    record.fail(error, answer.status)
    return answer


def _error_body(record: RequestRecord, error: Exception) -> bytes:
    """The event that ends a broken stream."""
    return _answer(error, record).body.to_json()


def _error_response(error: Exception, record: RequestRecord) -> Response:
    answer = _answer(error, record)
    response = _json(answer.body.to_json(), answer.status)
    response.headers.update(answer.headers)
    return response


async def _answer_http_exception(request: Request, error: Exception) -> Response:
    """Starlette's own refusals: no such route (404), wrong method (405)."""
    status = error.status_code if isinstance(error, HTTPException) else 500
    what = f"{request.method} {request.url.path}"
    message = f"{what}: method not allowed" if status == 405 else f"{what}: no such route"
    response = _error_response(RouteError(message, status=status), request.state.record)
    if isinstance(error, HTTPException):
        response.headers.update(error.headers or {})
    return response


async def _read_body(request: Request, limit_bytes: int) -> bytes:
    """The body, given up as soon as it is too long.

    Raises:
        BodyTooLarge: by its header or by what arrived.
        ClientGone: the client went away within it.
    """
    declared = request.headers.get("content-length", "")
    if declared.isdecimal() and int(declared) > limit_bytes:
        raise BodyTooLarge(f"the body has {declared} bytes, the limit is {limit_bytes}")
    body = bytearray()
    while True:
        message = await request.receive()
        if message["type"] == "http.disconnect":
            raise ClientGone
        body += message.get("body", b"")
        if len(body) > limit_bytes:
            raise BodyTooLarge(f"the body is longer than the limit of {limit_bytes} bytes")
        if not message.get("more_body", False):
            return bytes(body)


def _json(body: bytes, status: int = 200) -> Response:
    return Response(body, status_code=status, media_type="application/json")


def _version() -> str:
    try:
        return version("outrider")
    except PackageNotFoundError:
        return "unknown"
