"""Goodput, and what is asked of a service that is overloaded, by one client or by all.

Where a service is asked, routes, keys and admission are the real ones; the engines are a script.
"""

from __future__ import annotations

import itertools
import json
import random
import statistics
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from deployments.api.keys import ApiKeys
from deployments.config.applications import IMPORT_PATH
from deployments.ingress.admission import AdmissionControl
from deployments.ingress.metrics import RequestMetrics
from deployments.serve.instruments import Meters
from loadtest.__main__ import main
from loadtest.client.arrivals import SUSTAINED, Sent, Timing, arrivals, measure, send
from loadtest.client.client import LoadClient, Reply
from loadtest.client.workload import MIX, NUM_DISTINCT, Asking, Workload
from loadtest.experiments.crowds import OVERLOAD
from loadtest.experiments.tenants import TENANTS, write_keys
from loadtest.trial.scene import Scene, Terms
from loadtest.trial.trial import Place
from tests.fakes.http import ScriptedGenerator
from tests.fakes.scripted_server import answer, scripted_server
from tests.harness.http_clients import served

TIMING = Timing(settle_s=10.0, measured_s=10.0, first_text_limit_s=2.0)
WORKLOAD = Workload("tiny", 1, max_tokens=20, record_max_tokens=90, shared_words=20)


def sent(began_s: float, ended_s: float, status: int, **fields: Any) -> Sent:
    whole = {"began_s": began_s, "ended_s": began_s + ended_s, "complaint": "", **fields}
    return Sent(began_s, Reply(name="chat", status=status, **whole))


def whole(began_s: float, first_text_s: float, ended_s: float) -> Sent:
    text: dict[str, Any] = {
        "first_text_s": began_s + first_text_s,
        "num_tokens": 10,
        "is_whole": True,
    }
    return sent(began_s, ended_s, 200, **text)


def refused(began_s: float, after_s: float, *, complaint: str = "") -> Sent:
    retry_after_s = None if complaint else 3.0
    return sent(began_s, after_s, 429, complaint=complaint, retry_after_s=retry_after_s)


def test_goodput_counts_answers_that_end_in_the_measured_time() -> None:
    found = measure(
        [
            whole(8.0, 1.0, 4.0),  # arrived before, ends within
            whole(12.0, 1.0, 3.0),
            whole(13.0, 2.5, 4.0),  # its first text came too late
            whole(18.0, 1.0, 5.0),  # ends after
            refused(14.0, 0.02),
            refused(15.0, 0.04),
            refused(2.0, 0.9),  # before the measured time: among the refusals all the same
        ],
        0.0,
        TIMING,
    )
    assert found["goodput_per_s"] == 0.2
    assert found["good_tokens_per_s"] == 2.0
    assert found["arrived_per_s"] == 0.5
    assert found["good_share"] == pytest.approx(2 / 5)  # of 12, 13, 14, 15, 18: 12 and 18
    assert (found["late_answers"], found["turned_away"], found["failed"]) == (1, 3, 0)
    assert found["refusal_longest_s"] == pytest.approx(0.9)
    assert found["retry_after_least_s"] == found["retry_after_most_s"] == 3.0
    assert found["good_share"] < SUSTAINED


def test_an_answer_that_is_wrong_or_late_is_not_good() -> None:
    assert whole(0.0, 2.0, 9.0).is_good(2.0)
    assert not whole(0.0, 2.1, 9.0).is_good(2.0)
    assert not refused(0.0, 0.1).is_good(2.0)
    broken = [whole(11.0, 1.0, 2.0), refused(12.0, 0.1, complaint="status 500: oh")]
    assert measure(broken, 0.0, TIMING)["failed"] == 1
    with pytest.raises(ValueError, match="no arrival within 10 s"):
        measure([whole(1.0, 1.0, 2.0)], 0.0, TIMING)


def rate(goodput_per_s: float, **changes: float) -> dict[str, float]:
    usual = {"turned_away": 5, "refusal_p99_s": 0.02, "load_late_p99_s": 0.01}
    return {"goodput_per_s": goodput_per_s, **usual, **changes}


def missed(*last: dict[str, float]) -> list[str]:
    scene = Scene(terms=Terms(**OVERLOAD.terms))
    before = {"2.00/s": rate(2), "3.00/s": rate(3), "4.00/s": rate(3.4), "1 times": rate(3)}
    for way, figures in [*before.items(), *(("3 times", one) for one in last)]:
        scene.note("arrivals", way, figures)
    claims = OVERLOAD.claims_of(scene.result.rows, scene.terms)
    return [str(claim) for claim in claims if not claim.is_met]


def test_a_service_that_keeps_its_goodput_passes() -> None:
    assert missed(rate(3.1)) == []
    assert missed() == [], "what was not measured is not claimed"


@pytest.mark.parametrize(
    ("last", "words"),
    [
        (rate(3.0), "goodput / the peak of all rates: 0.88 (at least 0.9"),
        (rate(3.4, refusal_p99_s=1.5), "3 times: refusal_p99_s: 1.50 (at most 1"),
        (rate(3.4, load_late_p99_s=0.5), "3 times: load_late_p99_s: 0.50 (at most 0.25"),
        (rate(3.4, turned_away=0), "answers 429: 0.00 (at least 1"),
    ],
    ids=["collapse", "slow refusals", "late load", "no overload"],
)
def test_a_service_that_does_not_is_told_why(last: dict[str, float], words: str) -> None:
    [found] = missed(last)
    assert words in found


def test_arrivals_are_a_poisson_process_of_the_seed() -> None:
    times = arrivals(50.0, 200.0, random.Random(3))
    assert times == arrivals(50.0, 200.0, random.Random(3))
    assert times != arrivals(50.0, 200.0, random.Random(4))
    assert times == sorted(times)
    assert times[0] >= 0
    assert times[-1] < 200
    assert len(times) == pytest.approx(10_000, abs=400)  # four standard deviations
    gaps = [later - earlier for earlier, later in itertools.pairwise(times)]
    # Exponential gaps vary as much as they are long; evenly spaced ones would not vary.
    assert statistics.stdev(gaps) == pytest.approx(statistics.mean(gaps), rel=0.1)


def test_any_stretch_of_requests_has_the_whole_mix() -> None:
    size = sum(MIX.values())
    drawn = WORKLOAD.mixed(random.Random(1))
    for _ in range(3):
        names = [next(drawn).name for _ in range(size)]
        assert {name: names.count(name) for name in set(names)} == {
            "chat": MIX["chat"],
            "record": MIX["record"],
            "shared prompt": MIX["shared"],
            "cancelled chat": MIX["leave"],
            "bad request": MIX["bad"],
        }
    some = WORKLOAD.mixed(random.Random(1), {"chat": 1, "shared": 1})
    assert {next(some).name for _ in range(20)} == {"chat", "shared prompt"}


async def ask(url: str, asking: Asking) -> Reply:
    async with LoadClient(url, {}) as client:
        return await client.ask(asking)


@pytest.mark.parametrize(
    ("status", "headers", "after_s", "complaint"),
    [
        (429, {"retry-after": "2"}, 2.0, ""),
        (429, {}, None, "Retry-After"),
        (429, {"retry-after": "soon"}, None, "Retry-After"),
        (429, {"retry-after": "0"}, None, "Retry-After"),
        (503, {"retry-after": "1"}, None, "HTTP 503: full"),
    ],
)
async def test_only_429_with_a_time_to_come_back_is_being_turned_away(
    status: int, headers: dict[str, str], after_s: float | None, complaint: str
) -> None:
    with scripted_server(answer(b"full", status, headers=headers)) as server:
        reply = await ask(server.url, CHAT)
    assert reply.is_turned_away == (not complaint)
    assert (reply.retry_after_s, reply.is_whole) == (after_s, False)
    assert complaint in reply.complaint
    assert bool(reply.complaint) == bool(complaint)


async def test_a_service_that_is_gone_is_a_complaint() -> None:
    assert "ConnectError" in (await ask("http://127.0.0.1:9", CHAT)).complaint


CHAT, BAD = Asking(WORKLOAD.chat(1)), Asking(WORKLOAD.bad(0))


async def test_answers_are_read_judged_and_timed() -> None:
    with served(ScriptedGenerator()) as url:
        reply = await ask(url, CHAT)
        assert reply.is_whole
        assert reply.num_tokens == 3
        assert reply.first_text_s is not None
        assert reply.began_s < reply.first_text_s <= reply.ended_s
        refused_one = await ask(url, BAD)
        assert (refused_one.status, refused_one.complaint) == (400, "")
        assert not refused_one.is_whole
        left = await ask(url, Asking(WORKLOAD.chat(1), leave_after=1))
        assert (left.complaint, left.is_whole) == ("", False)
        wrong = await ask(url, Asking(WORKLOAD.record(1)))
        assert "not JSON" in wrong.complaint


async def test_a_slow_service_does_not_slow_the_arrivals() -> None:
    generator = ScriptedGenerator(delay_s=0.5)  # three blocks: 1.5 s for every answer
    timing = Timing(settle_s=0.5, measured_s=1.5, first_text_limit_s=5.0)
    due = arrivals(20.0, 2.0, random.Random("a"))
    with served(generator) as url:
        askings = WORKLOAD.mixed(random.Random(1), {"chat": 1})
        began_s = time.perf_counter()
        sent = await send(url, due, askings, {}, began_s)
    assert len(generator.requests) == len(due)  # one after the other would take 60 s
    found = measure(sent, began_s, timing)
    assert found["arrived_per_s"] == pytest.approx(sum(at_s >= 0.5 for at_s in due) / 1.5)
    assert found["good_share"] == 1.0


def records() -> dict[int, list[str]]:
    """A right answer for the seed of every record, in three blocks."""
    order = {"customer": "Tom", "item": "lamp", "quantity": 2, "price": 3, "city": "Oslo"}
    answers = {}
    for number in range(NUM_DISTINCT):
        request = WORKLOAD.record(number)
        assert request.schema is not None
        num_orders = request.schema["properties"]["orders"]["minItems"]
        text = json.dumps({"orders": [order] * num_orders})
        answers[request.body["seed"]] = [text[:9], text[9:20], text[20:]]
    return answers


@contextmanager
def behind_admission(
    folder: Path, generator: ScriptedGenerator, *, keys: Path | None = None, **limits: Any
) -> Iterator[tuple[str, Path]]:
    """Serve a script behind `AdmissionControl` with these limits; yield its URL and its config."""
    metrics = RequestMetrics(Meters({"model_name": "tiny"}))
    admission = AdmissionControl(on_load=metrics.set_load, **limits)
    args = "{target: {model_path: x}, router: {model_name: tiny}}"
    config = folder / "config.yaml"
    config.write_text(f"applications: [{{name: a, import_path: {IMPORT_PATH}, args: {args}}}]")
    parts = {"slot": admission.slot, "metrics": metrics.text}
    api_keys = None if keys is None else ApiKeys(keys)
    with served(generator, **parts, api_keys=api_keys) as url:
        yield url, config


@pytest.mark.day(0)
def test_the_command_finds_the_rate_and_is_turned_away_beyond_it(tmp_path: Path) -> None:
    generator = ScriptedGenerator(delay_s=0.1, texts_of=records())
    output = tmp_path / "overload.json"
    terms = (
        "first_rate=2 step=10 factors=10 settle_s=0.5 measured_s=2 max_tokens=20 "
        "record_max_tokens=90 shared_words=10 goodput_loss=0.9 refusal_limit_s=60 "
        "late_limit_s=60"  # which a busy machine is
    )
    limits: dict[str, Any] = {"max_sessions": 2, "max_queued": 4, "queue_wait_s": 2.0}
    with behind_admission(tmp_path, generator, **limits) as (url, config):
        words = ["overload", "--url", url, "--config", str(config), "--output", str(output)]
        assert main([*words, "--set", *terms.split()]) == 0
    found = json.loads(output.read_text())
    assert found["problems"] == []
    assert all(claim["is_met"] for claim in found["claims"])
    assert found["sustained_per_s"] == 2
    assert [row["way"] for row in found["samples"]] == ["2.00/s", "20.00/s", "10 times"]
    last = {name: values[0] for name, values in found["samples"][-1]["runs"].items()}
    assert last["rate_per_s"] == 20  # two places serve less than 7
    assert last["turned_away"] > 10
    assert last["retry_after_least_s"] >= 1
    assert 0 < last["goodput_per_s"] < 8
    assert last["peak_running"] == 2
    assert last["peak_waiting"] <= 4
    assert output.with_suffix(".png").stat().st_size > 5_000


BLOCK_S = 0.2  # each of the three of an answer
TERMS = {
    **TENANTS.terms,
    **{"rounds": 1, "seconds": 4.0, "settle_s": 0.5, "rate": 1.5, "at_once": 8, "long_tokens": 20},
}


@pytest.mark.day(2)
def test_who_asks_for_all_is_waited_for_and_who_may_not_have_it_is_not(tmp_path: Path) -> None:
    keys = write_keys(tmp_path / "keys", {"modest": "", "greedy": "", "limited": "sessions=2"})
    generator = ScriptedGenerator(delay_s=BLOCK_S)
    limits: dict[str, Any] = {"max_sessions": 4, "max_queued": 64, "queue_wait_s": 60.0}
    with behind_admission(tmp_path, generator, keys=keys, **limits) as (url, config):
        trial = replace(TENANTS, place=Place(is_watched=False), config=str(config))
        found = trial.run(Scene(terms=Terms(**TERMS), urls=[url]))
    assert found.problems == []
    first_s = {row["way"]: row["runs"]["first_text_p95_s"][0] for row in found.rows}
    assert list(first_s) == ["alone", "beside a greedy client", "beside a limited client"]
    # With all places taken, one is free every quarter of an answer, at the earliest.
    assert first_s["beside a greedy client"] > first_s["alone"] + BLOCK_S / 2
    assert first_s["beside a limited client"] < first_s["beside a greedy client"] - BLOCK_S / 4
    running = {row["way"]: row["runs"]["peak_running"][0] for row in found.rows}
    assert running["beside a greedy client"] == 4
    answers = [event["answers"] for event in found.extra["events"][1:]]
    assert [set(each) for each in answers] == [{"a long answer: 200"}] * 2
    [greedy, limited] = [each["a long answer: 200"] for each in answers]
    assert greedy > limited > 0
    claims = list(trial.claims[0](found.rows, Terms(**TERMS)))
    assert [claim.goal for claim in claims] == [1.5, 1.5]
