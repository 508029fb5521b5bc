"""OpenTelemetry spans of requests and their rounds, where an endpoint for them is set.

A request is a span for each of its choices. It is a child of the span that the client names in
`traceparent`. A round is a child of that: from the tokens before to its own. It has the tokens that
were drafted for it and those that were accepted. Names of attributes are those of OpenTelemetry's
conventions for generative AI where it has one. No prompt, no completion, no key is in a span.

Spans wait in a bounded queue and leave in a thread. A collector that is slow or gone loses spans
and holds up nothing. `OTEL_TRACES_SAMPLER` and the like mean what they mean elsewhere. The library
is imported when an endpoint is set, and only then.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from deployments.api.observer import Sink
from router.types import Delta, Finished, GenerationRequest

if TYPE_CHECKING:
    from opentelemetry.context import Context
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.trace import Tracer

_SERVICE = "outrider"
_MAX_ROUNDS = 256  # spans of one request; later rounds are counted in its own
_MAX_QUEUED = 8192  # spans, of about a kilobyte
_MAX_BATCH = 512
_SEND_PERIOD_MS = 1000
_SEND_TIMEOUT_S = 5.0


class RequestSpans:
    """Makes the spans of a router's requests.

    Args:
        provider: hands spans to whoever sends them.
        model_name: as clients call it.
    """

    def __init__(self, provider: TracerProvider, model_name: str) -> None:
        self._provider = provider
        self._tracer = provider.get_tracer(_SERVICE)
        self._model_name = model_name

    def of(self, request: GenerationRequest, headers: Mapping[str, str]) -> Sequence[Sink]:
        """Return the sink that makes the spans of one choice; none if it is not sampled.

        Args:
            request: of the choice.
            headers: of the HTTP request; `traceparent` and `tracestate` are read.
        """
        from opentelemetry.trace import SpanKind
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        sampling = request.sampling
        span = self._tracer.start_span(
            "llm_request",
            context=TraceContextTextMapPropagator().extract(dict(headers)),
            kind=SpanKind.SERVER,
            attributes={
                "gen_ai.request.model": request.adapter or self._model_name,
                "gen_ai.request.id": request.request_id,
                "gen_ai.request.max_tokens": request.max_tokens,
                "gen_ai.request.temperature": sampling.temperature,
                "gen_ai.request.top_p": sampling.top_p,
                "gen_ai.usage.input_tokens": len(request.prompt_ids),
                "outrider.has_grammar": request.grammar is not None,
            },
        )
        return (_ChoiceSpans(self._tracer, span),) if span.is_recording() else ()

    def close(self) -> None:
        """Send what is queued, for a bounded time, and end. Blocks."""
        self._provider.shutdown()


class _ChoiceSpans(Sink):
    """The span of one choice and those of its rounds."""

    def __init__(self, tracer: Tracer, span: Any) -> None:
        from opentelemetry.trace import set_span_in_context

        self._tracer = tracer
        self._span = span
        self._context: Context = set_span_in_context(span)
        self._last_ns = time.time_ns()
        self._num_rounds = 0

    def tokens(self, choice: int, delta: Delta) -> None:
        """See `Sink.tokens`."""
        now_ns, since_ns = time.time_ns(), self._last_ns
        self._last_ns = now_ns
        first, self._num_rounds = self._num_rounds, self._num_rounds + delta.num_verdicts
        if self._num_rounds > _MAX_ROUNDS:
            return
        self._tracer.start_span(
            "round",
            context=self._context,
            start_time=since_ns,
            attributes={
                "outrider.round": first,
                "outrider.num_rounds": delta.num_verdicts,  # that went out together
                "outrider.num_tokens": len(delta.token_ids),
                "outrider.num_draft_tokens": delta.num_draft_tokens,
                # One of each is the target's own; a text's end may have cut some off.
                "outrider.num_accepted_tokens": max(0, len(delta.token_ids) - delta.num_verdicts),
            },
        ).end(now_ns)

    def first_tokens(self, choice: int, num_tokens: int, after_s: float) -> None:
        """See `Sink.first_tokens`."""
        self._span.set_attribute("gen_ai.latency.time_to_first_token", after_s)

    def phases(self, choice: int, queue_s: float, prefill_s: float, decode_s: float) -> None:
        """See `Sink.phases`; under the names that vLLM's spans have."""
        self._span.set_attributes(
            {
                "gen_ai.latency.time_in_queue": queue_s,
                "gen_ai.latency.time_in_model_prefill": prefill_s,
                "gen_ai.latency.time_in_model_decode": decode_s,
            }
        )

    def finished(self, choice: int, end: Finished, after_s: float) -> None:
        """See `Sink.finished`."""
        stats = end.speculation
        self._span.set_attributes(
            {
                "gen_ai.response.finish_reasons": [end.finish_reason],
                "gen_ai.usage.output_tokens": end.num_completion_tokens,
                "gen_ai.latency.e2e": after_s,
                "outrider.num_cached_tokens": end.num_cached_tokens,
                "outrider.num_rounds": stats.num_rounds,
                "outrider.num_draft_tokens": stats.num_draft_tokens,
                "outrider.num_accepted_tokens": stats.num_accepted_draft_tokens,
                **{f"outrider.{part}_replica": name for part, name in end.replicas.items()},
            }
        )
        self._span.end()

    def failed(self, choice: int, code: str) -> None:
        """See `Sink.failed`."""
        from opentelemetry.trace import StatusCode

        self._span.set_attribute("error.type", code)
        self._span.set_status(StatusCode.ERROR, code)
        self._span.end()  # an error after the end says nothing any more


def request_spans(endpoint: str, model_name: str) -> RequestSpans | None:
    """Return a maker of spans that sends them to an OTLP endpoint over HTTP; None without one.

    Raises:
        ValueError: the packages that this takes are not installed.
    """
    if not endpoint:
        return None
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ImportError as error:
        raise ValueError(
            f"router.otlp_traces_endpoint: needs packages (pip install 'outrider[otel]'): {error}"
        ) from None
    resource = Resource.create({"service.name": _SERVICE, "gen_ai.request.model": model_name})
    provider = TracerProvider(resource=resource, shutdown_on_exit=False)
    exporter = OTLPSpanExporter(endpoint=endpoint, timeout=_SEND_TIMEOUT_S)
    provider.add_span_processor(
        BatchSpanProcessor(
            exporter,
            max_queue_size=_MAX_QUEUED,
            max_export_batch_size=_MAX_BATCH,
            schedule_delay_millis=_SEND_PERIOD_MS,
        )
    )
    return RequestSpans(provider, model_name)
