"""The HTTP routes: OpenAI's, tokens, models, health. No Ray inside.

A request for which there is no room is refused unread. Others are read within the body limit
(`edge.py`), parsed (`bodies.py`) and tokenised (`jobs.py`), long ones in threads (`off_loop.py`).
The `Generator` runs them, and `api/writing/` writes the answers. Nothing is sent before the first
item of the generator is there. Only signs of life are, if that takes long (`writing/sse.py`). So
every failure before the first item has its proper status, unless a sign of life was sent. Later
errors end the stream with an error event. A client that goes away ends the generation at once.
Every request leaves one line in the log (`request_log.py`). Every answer has the header
`x-request-id`, the client's own one where it sent a sane one. `transport/` has what browsers and
proxies between a client and the routes ask for.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TypeVar

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from deployments.api.bodies import parse
from deployments.api.cached_value import CachedValue
from deployments.api.choices import ChoiceItems, merged
from deployments.api.edge import (
    Edge,
    answer_http_exception,
    error_body,
    json_response,
    read_body,
    until_disconnect,
)
from deployments.api.health import HealthProbe
from deployments.api.jobs import Job, chat_job, completion_job
from deployments.api.keys import ApiKeys, KeyGate, Tenant, tenant_in
from deployments.api.observer import ChoiceObserver, Sink
from deployments.api.off_loop import OffLoop
from deployments.api.playground.page import docs_page, playground_files, playground_page
from deployments.api.request_log import RequestRecord
from deployments.api.requests import ServedModel
from deployments.api.responses.job import responses_job
from deployments.api.responses.shapes import ResponsesRequest
from deployments.api.running import event_stream, run_choice, whole_body
from deployments.api.schemas.answers import LiveStatus, ModelCard, ModelList, VersionStatus
from deployments.api.schemas.grammar_check import (
    GrammarCheckAnswer,
    GrammarCheckRequest,
    answer_check,
)
from deployments.api.schemas.openapi import OPEN_PATHS, OPERATIONS, OpenApiPage, own_version
from deployments.api.schemas.requests import ChatCompletionRequest, CompletionRequest
from deployments.api.schemas.strict_fields import BodyFields
from deployments.api.tokens.shapes import DetokenizeRequest, TokenizeRequest
from deployments.api.tokens.work import detokenized, tokenized
from deployments.api.transport.cors import cors
from deployments.api.transport.paths import PlainPaths
from deployments.api.transport.settings import HttpConfig
from deployments.api.writing.resuming import HEADER, Begun
from deployments.api.writing.sse import EventStream, Waits, WholeJson
from deployments.serve.instruments import CONTENT_TYPE
from models.protocol.errors import DeadlineExceeded
from router.types import GenerationRequest, Generator, GrammarChecker

# Tokenising this much takes about 5 ms; more is done in a thread, so that other streams flow on.
_INLINE_BODY_BYTES = 16_384
_LONG_BODY_S = 30.0  # a megabyte takes about two seconds

Asked = TypeVar("Asked", bound=BodyFields)
Made = TypeVar("Made")


def no_slot(tenant: Tenant, *, tells_length: bool = True) -> AbstractAsyncContextManager[None]:
    """Return a right that nobody waits for."""
    return nullcontext()


def nobody_first(tenant: Tenant) -> bool:
    """Return that no client goes before others."""
    return False


def no_spans(request: GenerationRequest, headers: Mapping[str, str]) -> Sequence[Sink]:
    """Return no sinks."""
    return ()


@dataclass(slots=True, kw_only=True)
class HttpService:
    """The parts that the routes need. Model and limits may be replaced; later requests see them.

    Attributes:
        model: what is served, and what may be asked of it.
        generator: runs requests.
        slot: makes a client's right to run one choice, which is waited for on entering it.
        goes_first: tells that a client's prompts are to be read before those of others.
        sinks: what observers of choices report to, next to the request's log line.
        spans: makes sinks for one choice, by the headers of its HTTP request.
        refuse_when_full: raises what a client's request that comes now would be refused with for
            want of room, before anything is done for it.
        sinks_of: makes further sinks for one choice of a client, or raises what it is refused with.
        health: answers GET /health.
        metrics: what GET /metrics prints, Prometheus' text.
        other_metrics: of other processes, printed below it; no name is on both.
        check_grammar: compares a text with a grammar; None: there is no constraint service.
        api_keys: the clients that may use the routes that are not open; None: all may.
        body_limit_bytes: largest body accepted.
        body_timeout_s: how long a client may take to send its body.
        send_timeout_s: how long a client may keep a stream waiting for one write; through Serve's
            proxy no write waits: it takes all and keeps it for the client.
        transport: what the config says of browsers and proxies.
    """

    model: ServedModel
    generator: Generator
    health: HealthProbe
    body_limit_bytes: int
    send_timeout_s: float
    slot: Callable[..., AbstractAsyncContextManager[None]] = no_slot
    goes_first: Callable[[Tenant], bool] = nobody_first
    sinks: Sequence[Sink] = ()
    spans: Callable[[GenerationRequest, Mapping[str, str]], Sequence[Sink]] = no_spans
    refuse_when_full: Callable[[Tenant], None] = lambda tenant: None
    sinks_of: Callable[[Tenant, GenerationRequest], Sequence[Sink]] = lambda tenant, request: ()
    metrics: Callable[[], bytes] = bytes  # nothing to say
    other_metrics: Callable[[], Awaitable[bytes]] | None = None
    api_keys: ApiKeys | None = None
    check_grammar: GrammarChecker | None = None
    body_timeout_s: float = 30.0
    transport: HttpConfig = field(default_factory=HttpConfig)


def create_app(service: HttpService, *, sends_request_id: bool = True) -> Starlette:
    """Return the ASGI application that serves `service`.

    `sends_request_id` False: the server around it writes the `x-request-id` of the request into
    the answer, as Serve's proxy does.
    """
    routes = Handlers(service).routes()
    layers = [
        *cors(service.transport.allowed_origins),
        Middleware(Edge, sends_request_id=sends_request_id),
        Middleware(PlainPaths, routes=routes),
    ]
    if service.api_keys is not None:
        layers.append(Middleware(KeyGate, keys=service.api_keys, open_paths=OPEN_PATHS))
    app = Starlette(
        routes=[*routes, playground_files()],
        middleware=layers,
        exception_handlers={HTTPException: answer_http_exception},
    )
    app.router.redirect_slashes = False
    return app


class Handlers:
    """One method per route; the table is `schemas.openapi.OPERATIONS`."""

    docs = staticmethod(docs_page)
    playground = staticmethod(playground_page)

    def __init__(self, service: HttpService) -> None:
        self._service = service
        self._openapi = OpenApiPage(asks_for_keys=service.api_keys is not None)
        # Any client may ask, and each time all replicas are asked.
        self._metrics = CachedValue(self._metrics_page)
        self._off_loop = OffLoop(timeout_s=_LONG_BODY_S)

    def routes(self) -> list[Route]:
        """Return the routes of the table."""
        routes = [
            Route(one.path, getattr(self, one.handler), methods=[one.method]) for one in OPERATIONS
        ]
        for route in routes:
            if route.path == "/":
                route.path_regex = re.compile("^/?$")  # a prefix without a slash behind it too
        return routes

    async def chat_completions(self, request: Request) -> Response:
        return await self._complete(request, ChatCompletionRequest, chat_job)

    async def completions(self, request: Request) -> Response:
        return await self._complete(request, CompletionRequest, completion_job)

    async def responses(self, request: Request) -> Response:
        return await self._complete(request, ResponsesRequest, responses_job)

    async def tokenize(self, request: Request) -> Response:
        return json_response(await self._worked(request, TokenizeRequest, tokenized))

    async def detokenize(self, request: Request) -> Response:
        return json_response(await self._worked(request, DetokenizeRequest, detokenized))

    async def check_grammar(self, request: Request) -> Response:
        """Compares a text with a constraint; see `schemas.grammar_check`."""
        tenant = tenant_in(request.scope)
        self._service.refuse_when_full(tenant)
        asked = await self._worked(request, GrammarCheckRequest, lambda asked, _: asked)
        if asked.model is not None:
            self._service.model.check_name(asked.model)

        async def answer() -> GrammarCheckAnswer:
            async with self._service.slot(tenant, tells_length=False):
                return await answer_check(asked, self._service.check_grammar)

        return json_response((await until_disconnect(request, answer())).to_json())

    async def models(self, _: Request) -> Response:
        names = (self._service.model.name, *self._service.model.adapters)
        return json_response(ModelList(data=[self._card(name) for name in names]).to_json())

    async def model(self, request: Request) -> Response:
        name = request.path_params["name"]
        self._service.model.check_name(name)
        return json_response(self._card(name).to_json())

    async def health(self, _: Request) -> Response:
        status = await self._service.health.check()
        return json_response(status.to_json(), 200 if status.status == "ok" else 503)

    async def alive(self, _: Request) -> Response:
        """Answer that this process lives.

        /readyz tells whether the engines do.
        """
        return json_response(LiveStatus().to_json())

    async def metrics(self, _: Request) -> Response:
        return Response(await self._metrics.get(), headers={"content-type": CONTENT_TYPE})

    async def _metrics_page(self) -> bytes:
        others = self._service.other_metrics
        return self._service.metrics() + (b"" if others is None else await others())

    async def version(self, _: Request) -> Response:
        return json_response(VersionStatus(version=own_version()).to_json())

    async def openapi(self, request: Request) -> Response:
        root_path = request.scope.get("root_path", "")
        # The first time it takes tens of milliseconds.
        page = await asyncio.to_thread(self._openapi.text, self._service.model, root_path)
        return json_response(page)

    async def _body(self, request: Request) -> bytes:
        timeout_s = self._service.body_timeout_s
        try:
            async with asyncio.timeout(timeout_s):
                return await read_body(request, self._service.body_limit_bytes)
        except TimeoutError:
            raise DeadlineExceeded(f"the body did not arrive within {timeout_s} s") from None

    def _card(self, name: str) -> ModelCard:
        model = self._service.model
        return ModelCard(
            id=name,
            created=model.created,
            max_model_len=model.max_model_len,
            parent=None if name == model.name else model.name,
        )

    async def _worked(
        self, request: Request, schema: type[Asked], work: Callable[[Asked, ServedModel], Made]
    ) -> Made:
        """Return the result of `work` on the body.

        A long body is read and worked on in a thread.
        """
        body, model = await self._body(request), self._service.model

        def made() -> Made:
            return work(parse(body, schema), model)

        if len(body) <= _INLINE_BODY_BYTES:
            return made()
        return await until_disconnect(request, self._off_loop.run(len(body), made))

    async def _complete(
        self, request: Request, schema: type[Asked], make_job: Callable[..., Job]
    ) -> Response:
        record: RequestRecord = request.state.record
        self._service.refuse_when_full(record.tenant)
        if (last_id := request.headers.get(HEADER)) is not None:
            make_job = partial(make_job, begun=Begun.read(last_id))
        job = await self._worked(request, schema, make_job)
        record.start(
            job.writer.head.model,
            job.requests,
            is_stream=job.is_stream,
            num_prompts=job.num_prompts,
        )
        num_choices = len(job.requests)
        turns = asyncio.Semaphore(self._service.model.max_choices_at_once)
        items = merged([self._choice(job, index, record, turns) for index in range(num_choices)])
        transport, send_timeout_s = self._service.transport, self._service.send_timeout_s
        failed = partial(error_body, record)
        if job.is_stream:
            return EventStream(
                event_stream(items, job, transport.stream_interval),
                waits=Waits(send_timeout_s, transport.heartbeat_s),
                failed=lambda error: job.encode([job.sealed(job.failed(failed(error)))]),
            )
        return WholeJson(
            partial(whole_body, items, num_choices, job.writer),
            waits=Waits(send_timeout_s, transport.whole_heartbeat_s),
            failed=failed,
        )

    def _choice(
        self, job: Job, index: int, record: RequestRecord, turns: asyncio.Semaphore
    ) -> ChoiceItems:
        service, tenant = self._service, record.tenant
        request = replace(tenant.salted(job.requests[index]), goes_first=service.goes_first(tenant))
        detokenizer = service.model.tokenizer.detokenizer(job.after(request), job.shown_ids)
        return run_choice(
            index,
            service.generator.generate(request, detokenizer),
            turn=turns,
            slot=service.slot(tenant),
            observer=ChoiceObserver(
                index,
                (
                    record,
                    *service.sinks,
                    *service.sinks_of(tenant, request),
                    *service.spans(request, record.headers),
                ),
            ),
            grammar_fields=job.grammar_fields,
        )
