"""Router metrics: vLLM's names, from requests that end well, badly, or with the client."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager, aclosing, nullcontext
from dataclasses import replace
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from deployments.api.observer import ChoiceObserver
from deployments.api.running import run_choice
from deployments.ingress.admission import AdmissionControl
from deployments.ingress.metrics import RequestMetrics
from deployments.serve.instruments import Declaration, Meters
from deployments.serve.meters import ray_mirror
from models.protocol.errors import Overloaded
from models.protocol.messages import Sampling
from router.types import Finished, GenerationRequest, LookaheadStats
from tests.fakes.http import STATS, ScriptedGenerator, tiny_tokenizer

REQUEST = GenerationRequest(
    request_id="r", prompt_ids=(1, 2, 3, 4), sampling=Sampling(), eos_ids=(), max_tokens=9
)


class Samples:
    """The samples of one scrape."""

    def __init__(self, text: bytes) -> None:
        self._samples = [
            sample
            for family in text_string_to_metric_families(text.decode())
            for sample in family.samples
        ]

    def __call__(self, name: str, **labels: str) -> float | None:
        for sample in self._samples:
            if sample.name == name and labels.items() <= sample.labels.items():
                assert sample.labels["model_name"] == "tiny"
                return float(sample.value)
        return None


class Recorder:
    """A mirror that notes what it is told."""

    def __init__(self) -> None:
        self.told: list[tuple[str, str, float, dict[str, str]]] = []

    def __call__(self, declared: Declaration) -> Any:
        name = declared.name
        told = self.told

        class Instrument:
            def inc(self, value: float, tags: Mapping[str, str]) -> None:
                assert value > 0  # Ray refuses others
                told.append(("inc", name, value, dict(tags)))

            def set(self, value: float, tags: Mapping[str, str]) -> None:
                told.append(("set", name, value, dict(tags)))

            def observe(self, value: float, tags: Mapping[str, str]) -> None:
                told.append(("observe", name, value, dict(tags)))

        return Instrument()


def made(mirror: Any = None) -> RequestMetrics:
    return RequestMetrics(Meters({"model_name": "tiny"}, mirror))


async def run(
    metrics: RequestMetrics,
    generator: ScriptedGenerator,
    num_items: int | None = None,
    slot: AbstractAsyncContextManager[None] | None = None,
) -> None:
    """One choice as the routes run it, left after `num_items` items."""
    choice = run_choice(
        0,
        generator.generate(REQUEST, tiny_tokenizer().detokenizer()),
        turn=nullcontext(),
        slot=nullcontext() if slot is None else slot,
        observer=ChoiceObserver(0, (metrics,)),
        grammar_fields=(),
    )
    async with aclosing(choice) as items:
        taken = 0
        async for _ in items:
            taken += 1
            if taken == num_items:
                return


async def test_a_finished_request_is_counted_under_vllms_names():
    metrics = made()
    await run(metrics, ScriptedGenerator(), num_items=4)  # left at its last item, as the routes do
    value = Samples(metrics.text())
    assert value("vllm:request_success_total", finished_reason="stop") == 1
    assert value("vllm:prompt_tokens_total") == 4
    assert value("vllm:generation_tokens_total") == 3
    assert value("vllm:time_to_first_token_seconds_count") == 1
    assert value("vllm:inter_token_latency_seconds_count") == 2
    assert value("vllm:e2e_request_latency_seconds_count") == 1
    for phase in ("queue", "prefill", "decode"):
        assert value(f"vllm:request_{phase}_time_seconds_count") == 1
    assert value("vllm:request_prompt_tokens_sum") == 4
    assert value("vllm:request_generation_tokens_sum") == 3
    assert value("outrider:request_failure_total") is None


def test_requests_under_a_grammar_are_counted_by_their_end():
    metrics = made()
    free = Finished(
        finish_reason="stop", num_prompt_tokens=4, num_completion_tokens=3, speculation=STATS
    )
    bound = replace(free, has_grammar=True)
    for end in (free, bound, replace(bound, finish_reason="length"), bound):
        metrics.finished(0, end, 1.0)
    value = Samples(metrics.text())
    assert value("outrider:constrained_requests_total", finished_reason="stop") == 2
    assert value("outrider:constrained_requests_total", finished_reason="length") == 1


async def test_look_aheads_are_counted_by_method_state_and_sign():
    metrics = made()
    ahead = LookaheadStats(
        method="cdsl",
        num_target_passes=50,
        num_verifications=10,
        num_draft_steps=40,
        num_rollouts=12,
        num_reward_calls=9,
        states={"accepted": 3, "low_reward": 7},
        score=0.5,
        is_met=False,
        is_budget_spent=True,
        advice={"too_much_generation": "lower reward_threshold"},
    )
    plain = Finished(
        finish_reason="stop",
        num_prompt_tokens=1,
        num_completion_tokens=1,
        num_cached_tokens=0,
        speculation=STATS,
    )
    for end in (plain, replace(plain, lookahead=ahead), replace(plain, lookahead=ahead)):
        metrics.finished(0, end, 1.0)
    value = Samples(metrics.text())
    assert value("outrider:lookahead_requests_total", method="cdsl", is_met="no") == 2
    assert value("outrider:lookahead_requests_total", is_met="yes") is None
    assert value("outrider:lookahead_states_total", state="low_reward") == 14
    assert value("outrider:lookahead_states_total", state="accepted") == 6
    assert value("outrider:lookahead_advice_total", sign="too_much_generation") == 2
    assert value("outrider:lookahead_target_passes_total") == 100
    assert value("outrider:lookahead_draft_steps_total") == 80
    assert value("outrider:lookahead_rollouts_total") == 24
    assert value("outrider:lookahead_reward_calls_total") == 18
    assert value("outrider:lookahead_budgets_spent_total") == 2


async def test_drafts_are_counted_as_vllm_counts_them():
    metrics = made()
    await run(metrics, ScriptedGenerator())
    value = Samples(metrics.text())
    assert value("vllm:spec_decode_num_drafts_total") == STATS.num_spec_steps
    assert value("vllm:spec_decode_num_draft_tokens_total") == STATS.num_draft_tokens
    assert value("vllm:spec_decode_num_accepted_tokens_total") == 6
    # One round each with 0, 1, 2 and 3 accepted tokens.
    stood = [
        value("vllm:spec_decode_num_accepted_tokens_per_pos_total", position=str(position))
        for position in range(4)
    ]
    assert stood == [3, 2, 1, None]
    assert value("outrider:draft_tokens_total", source="ngram") == 3
    assert value("outrider:accepted_draft_tokens_total", source="ngram") == 1
    assert value("outrider:guess_tokens_total") == 9
    assert value("outrider:right_guess_tokens_total") == 4
    assert value("outrider:ahead_tokens_total") == 5
    assert value("outrider:rounds_total") == STATS.num_rounds
    assert value("outrider:round_seconds_total", part="verify") == pytest.approx(0.0025)


@pytest.mark.parametrize(
    ("error", "code"), [(Overloaded("full"), "overloaded"), (KeyError("x"), "internal_error")]
)
async def test_a_failure_is_counted_by_its_code(error, code):
    metrics = made()
    with pytest.raises(type(error)):
        await run(metrics, ScriptedGenerator(error=error, error_at=1))
    value = Samples(metrics.text())
    assert value("outrider:request_failure_total", code=code) == 1
    assert value("vllm:generation_tokens_total") == 1, "counted as it came"
    assert value("vllm:time_to_first_token_seconds_count") == 1
    assert value("vllm:e2e_request_latency_seconds_count") == 0


async def test_a_client_that_goes_away_is_no_success_whenever_it_goes():
    metrics = made()
    await run(metrics, ScriptedGenerator(), num_items=1)
    scripted = ScriptedGenerator(hang_at=1)
    task = asyncio.create_task(run(metrics, scripted))
    await scripted.started.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    value = Samples(metrics.text())
    assert value("outrider:request_failure_total", code="client_gone") == 2
    assert value("vllm:request_success_total") is None


async def test_running_and_waiting_requests_are_gauges():
    scripted = ScriptedGenerator(hang_at=1)
    metrics = made()
    admission = AdmissionControl(
        max_sessions=1, max_queued=4, queue_wait_s=60.0, on_load=metrics.set_load
    )
    tasks = [asyncio.create_task(run(metrics, scripted, slot=admission.slot())) for _ in range(3)]
    await scripted.started.wait()
    value = Samples(metrics.text())
    assert value("vllm:num_requests_running") == 1
    assert value("vllm:num_requests_waiting") == 2
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    value = Samples(metrics.text())
    assert value("vllm:num_requests_running") == 0
    assert value("vllm:num_requests_waiting") == 0


async def test_a_mirror_is_told_the_same():
    mirror = Recorder()
    metrics = made(mirror)
    await run(metrics, ScriptedGenerator())
    metrics.text()  # or a period later
    told = {(kind, name): (value, tags) for kind, name, value, tags in mirror.told}
    assert told["inc", "vllm:generation_tokens"] == (3, {"model_name": "tiny"})
    assert told["inc", "vllm:request_success"][1] == {
        "model_name": "tiny",
        "finished_reason": "stop",
    }
    assert ("observe", "vllm:inter_token_latency_seconds") in told
    assert told["set", "vllm:num_requests_running"] == (0, {"model_name": "tiny"})


def test_gauges_are_told_again_while_nothing_changes():
    mirror = Recorder()
    metrics = RequestMetrics(Meters({"model_name": "tiny"}, mirror), lambda: 2)
    metrics.set_load(3, 2)
    metrics.set_refused(True)
    mirror.told.clear()
    for _ in range(2):
        metrics.publish()
    told = [(name, value) for _, name, value, _ in mirror.told]
    assert (
        told[:4]
        == told[4:]
        == [
            ("vllm:num_requests_running", 3),
            ("vllm:num_requests_waiting", 2),
            ("outrider:user_config_refused", 1),
            ("outrider:api_keys_refused", 2),
        ]
    )


def test_labels_name_a_series_in_whatever_order_they_come():
    meters = Meters({"model_name": "tiny"})
    counter = meters.counter("c", "Counts", ["a", "b"])
    counter.add(1, a="x", b="y")
    counter.add(2, b="y", a="x")
    counter.add(4, b="x", a="y")
    value = Samples(meters.text())
    assert (value("c_total", a="x", b="y"), value("c_total", a="y", b="x")) == (3, 4)


def test_rays_metrics_take_all_our_instruments(recwarn):
    RequestMetrics(Meters({"model_name": "tiny"}, ray_mirror))
    assert [str(warning.message) for warning in recwarn] == []
