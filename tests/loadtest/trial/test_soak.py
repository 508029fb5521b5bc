"""What a soak holds to be flat and bounded, on series made up for it."""

from __future__ import annotations

import math
import random
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import psutil
import pytest
import yaml

from loadtest.client.users import Users
from loadtest.client.workload import Workload
from loadtest.experiments.crowds import SOAK, Vitals, report_vitals
from loadtest.report.machine import ROOT
from loadtest.service.gauges import RUNNING, WAITING, GaugeWatch, capacity, gauges, limits
from loadtest.service.memory import MIB, Memory, MemoryWatch, Series, growth
from loadtest.service.watch import Watch
from loadtest.trial.scene import Scene, Terms
from tests.fakes.http import ScriptedGenerator
from tests.harness.http_clients import served
from tests.harness.waiting import block_until

LENGTH_S, PERIOD_S, WARM_UP_S, LIMIT = 1200.0, 4.0, 300.0, 0.03
TIMES = [PERIOD_S * number for number in range(int(LENGTH_S / PERIOD_S))]


def series(
    mib: Callable[[float], float], times: Sequence[float] = TIMES, *, pid: int = 7
) -> Series:
    made = Series(kind="router", pid=pid, is_ours=True)
    for at_s in times:
        size = round(mib(at_s) * MIB)
        made.add(at_s, Memory(private=size, proportional=size, resident=2 * size))
    return made


def checked(one: Series) -> dict[str, float]:
    return growth(one, WARM_UP_S, series(lambda at_s: 500.0, pid=0))


def warming_up(at_s: float) -> float:
    return 100 - 40 * math.exp(-at_s / 60)


def noisy(at_s: float) -> float:
    return 100 + 2 * random.Random(at_s).gauss(0, 1)


@pytest.mark.parametrize(
    "mib",
    [
        lambda at_s: 100.0,
        warming_up,
        noisy,
        lambda at_s: noisy(at_s) + 30 * (at_s % 100 < 8),  # spikes that go again
        lambda at_s: 100 + 5 * (at_s % 60) / 60,  # a sawtooth, as of a collector
        lambda at_s: 110 - at_s / 120,  # falls
        lambda at_s: 100 + 2.5 * at_s / LENGTH_S,  # within the limit
    ],
    ids=["constant", "warm-up", "noise", "spikes", "sawtooth", "falls", "within"],
)
def test_flat_memory_passes(mib: Callable[[float], float]) -> None:
    assert checked(series(mib))["growth"] <= LIMIT


@pytest.mark.parametrize(
    "mib",
    [
        lambda at_s: 100 + 10 * at_s / LENGTH_S,
        lambda at_s: noisy(at_s) + 12 * at_s / LENGTH_S,
        lambda at_s: 100 + 4 * (at_s > 800),  # a step, late, that stays
        lambda at_s: 100 + 5 * math.log1p(at_s / 100),  # ever slower, not slow enough
        lambda at_s: 5 + 0.5 * at_s / LENGTH_S,  # little, of a small process
    ],
    ids=["leak", "leak in noise", "step", "logarithm", "small"],
)
def test_growing_memory_fails(mib: Callable[[float], float]) -> None:
    assert checked(series(mib))["growth"] > LIMIT


def test_growth_is_reported_in_figures() -> None:
    found = checked(series(lambda at_s: 100 + 36 * at_s / 3600))
    assert found["slope_mib_per_hour"] == pytest.approx(36, rel=1e-3)
    quarter_s = (LENGTH_S - WARM_UP_S) / 4
    # from the middle of the first quarter to the middle of the last
    grown = found["late_mib"] - found["early_mib"]
    assert grown == pytest.approx(36 * 3 * quarter_s / 3600, rel=0.02)


def test_processes_that_come_and_go_are_complaints() -> None:
    with pytest.raises(ValueError, match="ended 500 s"):
        checked(series(noisy, [t for t in TIMES if t <= 500]))
    with pytest.raises(ValueError, match="came 700 s"):
        checked(series(noisy, [t for t in TIMES if t >= 700]))
    # One that is there from the end of the warm-up on is like any other.
    assert checked(series(noisy, [t for t in TIMES if t >= 100]))["growth"] <= LIMIT


def test_too_few_samples_are_a_complaint() -> None:
    short = series(noisy, TIMES[:80], pid=0)
    with pytest.raises(ValueError, match="samples in a quarter"):
        growth(short, WARM_UP_S, short)
    with pytest.raises(ValueError, match="no sample"):
        growth(short, LENGTH_S, short)


def test_a_sum_is_checked_by_what_is_not_counted_twice() -> None:
    every = Series(kind="ours together", pid=0, is_ours=True)
    for at_s in TIMES:
        grown = round((100 + 10 * at_s / LENGTH_S) * MIB)
        every.add(at_s, Memory(private=100 * MIB, proportional=grown, resident=grown))
    assert growth(every, WARM_UP_S, every)["growth"] > LIMIT


def test_limits_are_those_of_the_config() -> None:
    config = yaml.safe_load((ROOT / "configs" / "demo.yaml").read_text())
    found = limits(config)
    assert (found[RUNNING], found[WAITING]) == (32, 64)
    assert (found["Target.num_sessions"], found["Draft.num_leases"]) == (72, 72)
    assert capacity(config) == 32
    without = yaml.safe_load((ROOT / "configs" / "no-draft.yaml").read_text())
    assert not any(name.startswith("Draft") for name in limits(without))


def test_gauges_are_read_and_counters_are_not() -> None:
    text = (
        "# TYPE depth gauge\ndepth{part=\"a\"} 2\ndepth{part=\"b\"} 3\n"
        "# TYPE seen counter\nseen_total 9\n# TYPE seen_created gauge\nseen_created 1e9\n"
    )  # fmt: skip
    assert gauges(text) == {"depth": 5.0}


def test_what_cannot_be_watched_is_a_complaint() -> None:
    def stats() -> dict[str, list[dict[str, float]]]:
        return {"Target": [{"num_sessions": 3, "num_steps": 9}, {"num_sessions": 5}]}

    watch = GaugeWatch("http://127.0.0.1:9", stats)  # nobody listens there
    assert watch.sample(1.0) == {"Target.num_sessions": 5.0}
    assert len(watch.complaints) == 1
    assert watch.complaints[0].startswith("GET /metrics at 1 s: ConnectError")
    watch.sample(2.0, asks_replicas=False)
    assert watch.values["Target.num_sessions"] == [5.0, 5.0]
    assert len(watch.complaints) == 2


HOARDER = """
import mmap, os, sys
hoard = []
for line in sys.stdin:
    pages = mmap.mmap(-1, 4 << 20)
    pages.write(os.urandom(4 << 20))
    hoard.append(pages)
    print(len(hoard), flush=True)
"""


def test_memory_of_real_processes_is_read() -> None:
    # A process that does nothing else: that of the tests has threads of earlier ones.
    with subprocess.Popen(
        [sys.executable, "-c", HOARDER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        hoarder = psutil.Process(process.pid)
        watch = MemoryWatch(lambda: {"router": [hoarder]}, lambda: [hoarder])
        for number in range(13):  # the first one starts the process
            print("more", file=process.stdin, flush=True)
            assert process.stdout.readline() == f"{number + 1}\n"
            if number:
                watch.sample(float(number))
        process.stdin.close()
    [router, ours, rays] = watch.series
    assert router.pid == hoarder.pid
    found = growth(router, 0.0, ours)
    # Medians of the first three and the last three samples: nine hoards of 4 MiB between them.
    assert found["late_mib"] - found["early_mib"] == pytest.approx(36, abs=6)
    assert growth(ours, 0.0, ours)["growth"] > 0
    assert not rays.is_ours


def test_users_ask_until_they_are_stopped_and_failures_are_kept() -> None:
    workload = Workload("tiny", 1, max_tokens=20, record_max_tokens=90, shared_words=20)
    with served(ScriptedGenerator()) as url:
        load = Users(url, workload, num_users=4, seed=1, expects_same_text=True)
        load.start()
        block_until(lambda: load.num_answers >= 60)
        load.stop()
    ended = Counter(reply.name for reply in load.replies)
    failures = load.take_failures()
    # The script answers "The bear." to everything: right for a chat, wrong for a record.
    assert Counter(failure.case for failure in failures) == {"record": ended["record"]}
    assert ended["record"] > 0
    assert "not JSON" in failures[0].reason
    assert sum(reply.num_tokens for reply in load.replies) >= 3 * ended["chat"] > 0
    assert load.take_failures() == []


class Watched:
    """Replicas with one session more at each look."""

    def __init__(self) -> None:
        self.num_sessions = 0

    def parts(self) -> dict[str, list[psutil.Process]]:
        return {"router": [psutil.Process()]}

    def stats(self) -> dict[str, list[dict[str, float]]]:
        self.num_sessions += 2
        return {"Target": [{"num_sessions": self.num_sessions}]}

    def processes(self) -> list[psutil.Process]:
        return [psutil.Process()]


def test_a_report_says_everything_that_is_too_much() -> None:
    scene = Scene(terms=Terms(**{**SOAK.terms, "minutes": 2.0, "warm_up": 0.0, "users": 4}))
    scene.config = yaml.safe_load((ROOT / "configs" / "demo.yaml").read_text())
    scene.base_url = "http://127.0.0.1:9"  # nobody listens there
    watched: Any = Watched()
    scene.watched = watched
    vitals = Vitals(scene, watched)
    scene.watch = Watch(1.0, vitals)
    for number in range(160):  # every fourth look asks the replicas
        vitals(float(number))
    report_vitals(scene)
    claims = {claim.text: claim for claim in SOAK.claims_of(scene.result.rows, scene.terms)}
    sessions = claims["gauges, Target.num_sessions: share_of_limit"]
    assert sessions.value == pytest.approx(80 / 72, abs=1e-3)
    assert not sessions.is_met
    assert claims[f"memory, router {psutil.Process().pid}: growth"].goal == 0.03
    assert "memory, ours together: growth" in claims
    assert claims["load, users: saturation"].value == 0.0
    assert f"{RUNNING} was never to be had" in scene.result.problems
    over_time = scene.result.extra["gauges"]["Target.num_sessions"]
    assert (over_time["minute"], over_time["last"]) == ([0, 1, 2], 80)
