"""Router metrics: vLLM's names, from requests that end well, badly, or with the client."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager, aclosing, nullcontext
from dataclasses import replace
from typing import Any

import pytest

from deployments.api.observer import ChoiceObserver
from deployments.api.running import run_choice
from deployments.ingress.admission import AdmissionControl
from deployments.ingress.metrics import RequestMetrics
from deployments.serve.instruments import Declaration, Meters
from models.protocol.errors import Overloaded
from router.types import Finished, LookaheadStats
from tests.fakes.http import STATS, ScriptedGenerator, tiny_tokenizer
from tests.fakes.sessions import asked
from tests.harness.metric_pages import samples

LABELS = {"model_name": "tiny"}
REQUEST = asked(prompt_ids=(1, 2, 3, 4), max_tokens=9)
END = Finished(
    finish_reason="stop", num_prompt_tokens=4, num_completion_tokens=3, speculation=STATS
)


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
    return RequestMetrics(Meters(LABELS, mirror))


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
    page = samples(metrics.text(), LABELS)
    assert page["vllm:request_success_total:stop"] == 1
    assert page["vllm:prompt_tokens_total"] == 4
    assert page["vllm:generation_tokens_total"] == 3
    assert page["vllm:time_to_first_token_seconds_count"] == 1
    assert page["vllm:inter_token_latency_seconds_count"] == 2
    assert page["vllm:e2e_request_latency_seconds_count"] == 1
    for phase in ("queue", "prefill", "decode"):
        assert page[f"vllm:request_{phase}_time_seconds_count"] == 1
    assert page["vllm:request_prompt_tokens_sum"] == 4
    assert page["vllm:request_generation_tokens_sum"] == 3
    assert not any(name.startswith("outrider:request_failure_total") for name in page)


def test_requests_under_a_grammar_are_counted_by_their_end():
    metrics = made()
    bound = replace(END, has_grammar=True)
    for end in (END, bound, replace(bound, finish_reason="length"), bound):
        metrics.finished(0, end, 1.0)
    page = samples(metrics.text(), LABELS)
    assert page["outrider:constrained_requests_total:stop"] == 2
    assert page["outrider:constrained_requests_total:length"] == 1


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
    steered = replace(END, lookahead=ahead)
    for end in (END, steered, steered):
        metrics.finished(0, end, 1.0)
    page = samples(metrics.text(), LABELS)
    assert page["outrider:lookahead_requests_total:no:cdsl"] == 2
    assert "outrider:lookahead_requests_total:yes:cdsl" not in page
    assert page["outrider:lookahead_states_total:low_reward"] == 14
    assert page["outrider:lookahead_states_total:accepted"] == 6
    assert page["outrider:lookahead_advice_total:too_much_generation"] == 2
    assert page["outrider:lookahead_target_passes_total"] == 100
    assert page["outrider:lookahead_draft_steps_total"] == 80
    assert page["outrider:lookahead_rollouts_total"] == 24
    assert page["outrider:lookahead_reward_calls_total"] == 18
    assert page["outrider:lookahead_budgets_spent_total"] == 2


async def test_drafts_are_counted_as_vllm_counts_them():
    metrics = made()
    await run(metrics, ScriptedGenerator())
    page = samples(metrics.text(), LABELS)
    assert page["vllm:spec_decode_num_drafts_total"] == STATS.num_spec_steps
    assert page["vllm:spec_decode_num_draft_tokens_total"] == STATS.num_draft_tokens
    assert page["vllm:spec_decode_num_accepted_tokens_total"] == 6
    # One round each with 0, 1, 2 and 3 accepted tokens.
    stood = [
        page.get(f"vllm:spec_decode_num_accepted_tokens_per_pos_total:{position}")
        for position in range(4)
    ]
    assert stood == [3, 2, 1, None]
    assert page["outrider:draft_tokens_total:ngram"] == 3
    assert page["outrider:accepted_draft_tokens_total:ngram"] == 1
    assert page["outrider:guess_tokens_total"] == 9
    assert page["outrider:right_guess_tokens_total"] == 4
    assert page["outrider:ahead_tokens_total"] == 5
    assert page["outrider:rounds_total"] == STATS.num_rounds
    assert page["outrider:round_seconds_total:verify"] == pytest.approx(0.0025)


@pytest.mark.parametrize(
    ("error", "code"), [(Overloaded("full"), "overloaded"), (KeyError("x"), "internal_error")]
)
async def test_a_failure_is_counted_by_its_code(error, code):
    metrics = made()
    with pytest.raises(type(error)):
        await run(metrics, ScriptedGenerator(error=error, error_at=1))
    page = samples(metrics.text(), LABELS)
    assert page[f"outrider:request_failure_total:{code}"] == 1
    assert page["vllm:generation_tokens_total"] == 1, "counted as it came"
    assert page["vllm:time_to_first_token_seconds_count"] == 1
    assert page["vllm:e2e_request_latency_seconds_count"] == 0


async def test_a_client_that_goes_away_is_no_success_whenever_it_goes():
    metrics = made()
    await run(metrics, ScriptedGenerator(), num_items=1)
    scripted = ScriptedGenerator(hang_at=1)
    task = asyncio.create_task(run(metrics, scripted))
    await scripted.started.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    page = samples(metrics.text(), LABELS)
    assert page["outrider:request_failure_total:client_gone"] == 2
    assert not any(name.startswith("vllm:request_success_total") for name in page)


async def test_running_and_waiting_requests_are_gauges():
    scripted = ScriptedGenerator(hang_at=1)
    metrics = made()
    admission = AdmissionControl(
        max_sessions=1, max_queued=4, queue_wait_s=60.0, on_load=metrics.set_load
    )
    tasks = [asyncio.create_task(run(metrics, scripted, slot=admission.slot())) for _ in range(3)]
    await scripted.started.wait()
    page = samples(metrics.text(), LABELS)
    assert page["vllm:num_requests_running"] == 1
    assert page["vllm:num_requests_waiting"] == 2
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    page = samples(metrics.text(), LABELS)
    assert page["vllm:num_requests_running"] == 0
    assert page["vllm:num_requests_waiting"] == 0


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
    metrics = RequestMetrics(Meters(LABELS, mirror), lambda: 2)
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
    meters = Meters(LABELS)
    counter = meters.counter("c", "Counts", ["a", "b"])
    counter.add(1, a="x", b="y")
    counter.add(2, b="y", a="x")
    counter.add(4, b="x", a="y")
    page = samples(meters.text(), LABELS)
    assert (page["c_total:x:y"], page["c_total:y:x"]) == (3, 4)
