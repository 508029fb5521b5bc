"""Spans of requests and rounds, as a collector of our own gets them."""

from __future__ import annotations

import gzip
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import accumulate
from typing import Any

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from deployments.config.check import check
from deployments.config.cluster import this_machine
from deployments.config.placement import placements_of
from deployments.config.schema import AppConfig, RouterConfig
from deployments.ingress.spans import request_spans
from router.stats import SpeculationStats
from router.types import Finished
from tests.deployments.ingress.test_service import DEMO, chat, config, serving
from tests.fakes.scripted_server import Request, answer, scripted_server
from tests.fakes.sessions import asked

EXPORTER = "opentelemetry.exporter.otlp.proto.http.trace_exporter"
TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
SECRET = "heron-at-noon"


@contextmanager
def collector() -> Iterator[tuple[str, list[Span]]]:
    """An OTLP endpoint and the spans that it was sent."""
    spans: list[Span] = []

    def collect(request: Request) -> None:
        is_packed = request.headers.get("Content-Encoding") == "gzip"
        body = gzip.decompress(request.body) if is_packed else request.body
        for resource in ExportTraceServiceRequest.FromString(body).resource_spans:
            for scope in resource.scope_spans:
                spans.extend(scope.spans)
        answer(b"")(request)

    with scripted_server(collect) as server:
        yield f"{server.url}/v1/traces", spans


def attributes(span: Span) -> dict[str, Any]:
    return {
        one.key: getattr(one.value, one.value.WhichOneof("value") or "") for one in span.attributes
    }


async def test_a_request_is_a_span_and_each_round_a_child() -> None:
    headers = {"traceparent": f"00-{TRACE}-{PARENT}-01"}
    body = chat(speculation={"k": 3}, ignore_eos=True, n=2)
    body["messages"][0]["content"] += SECRET
    with collector() as (endpoint, spans):
        async with serving(config(otlp_traces_endpoint=endpoint)) as (client, _, service):
            answer = await client.post("/v1/chat/completions", json=body, headers=headers)
            refused = chat(structured_outputs={"json": {"type": "nonsense"}})
            assert (await client.post("/v1/chat/completions", json=refused)).status_code == 400
            service.close()
    assert answer.status_code == 200
    requests = [span for span in spans if span.name == "llm_request"]
    ours = [span for span in requests if span.trace_id.hex() == TRACE]
    assert [span.parent_span_id.hex() for span in ours] == [PARENT] * 2
    [failed] = [span for span in requests if span not in ours]
    assert attributes(failed)["error.type"] == "unsupported_grammar"
    assert failed.status.code == failed.status.STATUS_CODE_ERROR
    rounds = {
        span.span_id: [one for one in spans if one.parent_span_id == span.span_id] for span in ours
    }
    stats = answer.json()["metrics"]["speculative_decoding"]
    said = [attributes(span) for span in ours]
    assert sum(one["outrider.num_draft_tokens"] for one in said) == stats["num_draft_tokens"]
    for span, told in zip(ours, said, strict=True):
        children = [attributes(one) for one in rounds[span.span_id]]
        assert {one.name for one in rounds[span.span_id]} == {"round"}
        of_rounds = [one["outrider.num_rounds"] for one in children]
        assert sum(of_rounds) == told["outrider.num_rounds"]
        assert [one["outrider.round"] for one in children] == [0, *accumulate(of_rounds)][:-1]
        assert sum(one["outrider.num_tokens"] for one in children) == 24
        drafted = sum(one["outrider.num_draft_tokens"] for one in children)
        assert drafted == told["outrider.num_draft_tokens"] > 0
        for one in rounds[span.span_id]:
            assert span.start_time_unix_nano <= one.start_time_unix_nano <= one.end_time_unix_nano
            assert one.end_time_unix_nano <= span.end_time_unix_nano
    assert told["gen_ai.usage.output_tokens"] == 24
    assert told["gen_ai.request.model"] == "demo"
    assert 0 < told["gen_ai.latency.time_to_first_token"] <= told["gen_ai.latency.e2e"]
    phases = ("time_in_queue", "time_in_model_prefill", "time_in_model_decode")
    parts = [told[f"gen_ai.latency.{phase}"] for phase in phases]
    assert sum(parts) == pytest.approx(told["gen_ai.latency.e2e"])
    assert not any(SECRET in str(span) for span in spans)


def test_a_span_names_the_replicas_that_served_it() -> None:
    end = Finished(
        finish_reason="stop",
        num_prompt_tokens=1,
        num_completion_tokens=1,
        speculation=SpeculationStats(),
        replicas={"target": "t-1"},
    )
    with collector() as (endpoint, spans):
        maker = request_spans(endpoint, "demo")
        assert maker is not None
        [sink] = maker.of(asked(), {})
        sink.finished(0, end, 1.0)
        maker.close()
    [span] = spans
    assert attributes(span)["outrider.target_replica"] == "t-1"
    assert "outrider.draft_replica" not in attributes(span)


async def test_what_the_client_does_not_sample_is_no_span() -> None:
    headers = {"traceparent": f"00-{TRACE}-{PARENT}-00"}
    with collector() as (endpoint, spans):
        async with serving(config(otlp_traces_endpoint=endpoint)) as (client, _, service):
            answer = await client.post("/v1/chat/completions", json=chat(), headers=headers)
            service.close()
    assert answer.status_code == 200
    assert spans == []


async def test_a_collector_that_is_gone_loses_spans_and_no_request() -> None:
    endpoint = "http://127.0.0.1:9/v1/traces"
    async with serving(config(otlp_traces_endpoint=endpoint)) as (client, _, service):
        for _ in range(3):
            assert (await client.post("/v1/chat/completions", json=chat())).status_code == 200
        service.close()


def test_without_the_packages_the_key_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    for package in (EXPORTER, "vllm"):
        monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(ValueError, match=r"router\.otlp_traces_endpoint: needs packages"):
        request_spans("http://127.0.0.1:9", "x")
    tree = {
        "target": {"model_path": str(DEMO / "target"), "max_model_len": 256, "engine": "vllm"},
        "router": {"otlp_traces_endpoint": "http://127.0.0.1:9"},
    }
    wanted = AppConfig.model_validate(tree)
    faults = check(wanted, this_machine(), placements_of(wanted, []))
    assert [fault.key for fault in faults] == ["target.engine", "router.otlp_traces_endpoint"]


def test_an_endpoint_is_an_address() -> None:
    with pytest.raises(ValueError, match="otlp_traces_endpoint"):
        RouterConfig(otlp_traces_endpoint="collector:4317")
