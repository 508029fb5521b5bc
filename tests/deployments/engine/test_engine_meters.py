"""What engines and constraint replicas measure, and what they tell Serve to scale by."""

from __future__ import annotations

from dataclasses import replace

import pytest
from prometheus_client.parser import text_string_to_metric_families

from deployments.constraint.meters import ConstraintMeters
from deployments.constraint.workers import ConstraintStats
from deployments.engine.loop import LoopStats
from deployments.engine.meters import EngineMeters, EngineReport, EngineStart
from deployments.ingress.metrics import RequestMetrics
from deployments.serve.instruments import Meters
from deployments.serve.meters import ray_mirror
from deployments.serve.page import merged
from models.engine.load import EngineLoad
from tests.harness.metric_pages import samples

LABELS = {"model_name": "tiny", "engine": "draft"}
LOAD = EngineLoad(
    num_running=3,
    num_waiting=2,
    num_waiting_tokens=77,
    num_free_blocks=30,
    num_blocks=40,
    num_preemptions=1,
    num_prefill_rows=500,
    num_decode_rows=60,
    num_passes=20,
    passes_s=2.5,
    prefix_queries=400,
    prefix_hits=300,
    prefix_evictions=9,
)


def test_an_engine_is_seen_under_vllms_names_and_ours():
    meters = EngineMeters(Meters(LABELS))
    meters.update(LOAD, num_leases=5)
    assert samples(meters.text(), LABELS) == {
        "outrider:leases": 5,
        "vllm:kv_cache_usage_perc": 0.25,
        "outrider:sessions_running": 3,
        "outrider:sessions_waiting": 2,
        "outrider:waiting_tokens": 77,
        "vllm:prefix_cache_queries_total": 400,
        "vllm:prefix_cache_hits_total": 300,
        "outrider:prefix_cache_evictions_total": 9,
        "vllm:num_preemptions_total": 1,
        "outrider:passes_total": 20,
        "outrider:pass_seconds_total": 2.5,
        "outrider:pass_rows_total:prefill": 500,
        "outrider:pass_rows_total:decode": 60,
        "outrider:cuda_graphs": 0,
        "outrider:cuda_graph_bytes": 0,
        "outrider:batch_invariant": 0,
    }


def test_what_an_engine_came_to_at_its_start_is_seen():
    meters = EngineMeters(Meters(LABELS))
    meters.describe(EngineStart(batch_invariant=True, num_graphs=53, graph_bytes=900_000_000))
    meters.update(LOAD, 1)
    value = samples(meters.text(), LABELS)
    assert value["outrider:batch_invariant"] == 1
    assert (value["outrider:cuda_graphs"], value["outrider:cuda_graph_bytes"]) == (53, 9e8)


def test_counters_go_on_where_another_model_begins_at_0():
    meters = EngineMeters(Meters(LABELS))
    for num_passes in (20, 20, 26):
        meters.update(replace(LOAD, num_passes=num_passes), 0)
    meters.begin_anew()
    meters.update(EngineLoad(num_passes=3), 0)
    assert samples(meters.text(), LABELS)["outrider:passes_total"] == 26 + 3


def test_an_engine_that_nobody_has_looked_at_shows_zeros():
    assert set(samples(EngineMeters(Meters(LABELS)).text(), LABELS).values()) == {0.0}


def test_a_constraint_replica_is_seen():
    meters = ConstraintMeters(Meters(LABELS))
    stats = ConstraintStats(
        queue_length=4, opens=9, cache_hits=6, compile_ms_total=250.0, refusals=2, restarts=1
    )
    meters.update(stats, num_leases=7)
    meters.update(stats, num_leases=8)
    assert samples(meters.text(), LABELS) == {
        "outrider:leases": 8,
        "outrider:constraint_queue_length": 4,
        "outrider:grammars_opened_total": 9,
        "outrider:grammar_cache_hits_total": 6,
        "outrider:grammars_loosened_total": 0,
        "outrider:grammar_compile_seconds_total": 0.25,
        "outrider:grammars_refused_total": 2,
        "outrider:constraint_restarts_total": 1,
        "outrider:constraint_rejected_total": 0,
    }


def test_rays_metrics_take_the_instruments(recwarn):
    RequestMetrics(Meters({"model_name": "tiny"}, ray_mirror))
    EngineMeters(Meters(LABELS, ray_mirror)).update(LOAD, 1)
    ConstraintMeters(Meters(LABELS, ray_mirror)).update(ConstraintStats(opens=1), 1)
    assert [str(warning.message) for warning in recwarn] == []


def looked(at_s: float, passes_s: float) -> LoopStats:
    return LoopStats(
        num_ticks=1,
        num_steps=1,
        num_sessions=1,
        num_used_blocks=10,
        is_stepping=False,
        step_age_s=0.0,
        load=replace(LOAD, passes_s=passes_s),
        looked_at_s=at_s,
    )


def test_before_the_first_look_there_is_nothing_to_report():
    assert EngineReport().take() == {}


def test_the_busy_share_counts_from_report_to_report():
    report = EngineReport()
    report.note(looked(100.0, passes_s=50.0))
    assert report.take() == {"kv_use": 0.25, "waiting_tokens": 77.0, "busy": 0.0}
    report.note(looked(101.0, passes_s=50.0))
    report.note(looked(104.0, passes_s=53.0))  # looks in between do not matter
    assert report.take()["busy"] == pytest.approx(0.75)
    assert report.take()["busy"] == pytest.approx(0.75), "nobody has looked since"
    report.note(looked(106.0, passes_s=53.0))
    assert report.take()["busy"] == 0.0


def test_a_pass_that_outlasts_a_look_is_no_more_than_all_the_time():
    report = EngineReport()
    report.note(looked(10.0, passes_s=1.0))
    report.note(looked(10.5, passes_s=3.0))  # began before the first look
    assert report.take()["busy"] == 1.0


# --- many replicas on one page ----------------------------------------------------------------


def test_a_page_of_many_replicas_tells_them_apart():
    target, draft = (
        EngineMeters(Meters({"model_name": "tiny", "engine": engine}))
        for engine in ("target", "draft")
    )
    target.update(LOAD, 5)
    draft.update(replace(LOAD, num_free_blocks=10), 4)
    constraint = ConstraintMeters(Meters({"model_name": "tiny", "engine": "constraint"}))
    constraint.update(ConstraintStats(opens=3), 2)
    page = merged([("t1", target.text()), ("d1", draft.text()), ("c1", constraint.text())])
    families = list(text_string_to_metric_families(page.decode()))
    assert len({family.name for family in families}) == len(families), "each is named once"
    found = {
        (sample.name, sample.labels["engine"], sample.labels["replica"]): sample.value
        for family in families
        for sample in family.samples
    }
    assert found["outrider:leases", "target", "t1"] == 5
    assert found["outrider:leases", "constraint", "c1"] == 2
    assert found["vllm:kv_cache_usage_perc", "target", "t1"] == 0.25
    assert found["vllm:kv_cache_usage_perc", "draft", "d1"] == 0.75
    assert found["outrider:grammars_opened_total", "constraint", "c1"] == 3
    assert found["vllm:prefix_cache_hits_total", "draft", "d1"] == 300
    assert {family.type for family in families if family.name == "outrider:passes"} == {"counter"}
