"""The HTTP routes: OpenAI's chat and text completions, models, health. No Ray inside.

A request for which there is no room is refused unread. Others are read within the body limit
(`edge.py`), parsed and tokenised (`jobs.py`), run by the `Generator`, and written (`writers.py`,
`sse.py`). The first item of the generator is awaited before anything is sent, so whatever fails up
to then has its proper status; later errors end the stream with an error event. A client that goes
away ends the generation wherever it stands.
Every request leaves one line in the log (`request_log.py`).
Every answer has the header `x-request-id`, the client's own one where it sent a sane one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from typing import cast

from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, Response
from starlette.exceptions import HTTPException

from deployments.api.answers import ModelCard, ModelList
from deployments.api.choices import Items, merged
from deployments.api.edge import (
    Edge,
    answer_http_exception,
    error_body,
    json_response,
    read_body,
    until_disconnect,
)
from deployments.api.grammar_fields import naming_field
from deployments.api.health import HealthProbe
from deployments.api.jobs import Job, chat_job, completion_job
from deployments.api.json_chunks import coalesced
from deployments.api.request_log import RequestRecord
from deployments.api.requests import ServedModel
from deployments.api.running import event_stream, first_item, whole_body
from deployments.api.sse import ChunkedJson, EventStream
from deployments.api_keys import ApiKeys, KeyGate
from deployments.meters import CONTENT_TYPE
from models.errors import DeadlineExceeded
from router.generation import GenerationRequest, Generator

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
    app.add_middleware(Edge, sends_request_id=sends_request_id)
    app.add_exception_handler(HTTPException, answer_http_exception)
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
        return await self._complete(request, chat_job)

    async def completions(self, request: Request) -> Response:
        return await self._complete(request, completion_job)

    async def models(self) -> Response:
        return json_response(ModelList(data=[self._card()]).to_json())

    async def model(self, name: str) -> Response:
        self._service.model.check_name(name)
        return json_response(self._card().to_json())

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
                return await read_body(request, self._service.body_limit_bytes)
        except TimeoutError:
            raise DeadlineExceeded(f"the body did not arrive within {timeout_s} s") from None

    def _card(self) -> ModelCard:
        model = self._service.model
        return ModelCard(id=model.name, created=model.created, max_model_len=model.max_model_len)

    async def _complete(
        self, request: Request, make_job: Callable[[bytes, ServedModel], Job]
    ) -> Response:
        self._service.refuse_when_full()
        body = await self._body(request)
        if len(body) <= _INLINE_BODY_BYTES:
            job = make_job(body, self._service.model)
        else:
            job = await asyncio.to_thread(make_job, body, self._service.model)
        record: RequestRecord = request.state.record
        record.start(
            self._service.model.name,
            job.requests,
            is_stream=job.is_stream,
            num_prompts=job.num_prompts,
        )
        items = record.watched(merged([self._choice(job, wanted) for wanted in job.requests]))
        num_choices = len(job.requests)
        if not job.is_stream:
            whole = whole_body(items, num_choices, job.writer)
            return self._whole(await until_disconnect(request, whole))
        first = await until_disconnect(request, first_item(items))
        return EventStream(
            event_stream(
                items, first, num_choices, job.writer, partial(error_body, record), job.sealed
            ),
            send_timeout_s=self._service.send_timeout_s,
        )

    def _whole(self, chunks: list[bytes]) -> Response:
        chunks = coalesced(chunks)
        if len(chunks) == 1:
            return json_response(chunks[0])
        return ChunkedJson(chunks, send_timeout_s=self._service.send_timeout_s)

    def _choice(self, job: Job, request: GenerationRequest) -> Items:
        detokenizer = self._service.model.tokenizer.detokenizer(job.after(request))
        items = cast("Items", self._service.generator.generate(request, detokenizer))
        return items if job.grammar_field is None else naming_field(items, job.grammar_field)


def _version() -> str:
    try:
        return version("outrider")
    except PackageNotFoundError:
        return "unknown"
