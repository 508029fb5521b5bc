"""What a soak holds to be flat and bounded, on series made up for it."""

from __future__ import annotations

import json
import math
import mmap
import os
import random
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import psutil
import pytest

from loadtest.client.workload import Workload
from loadtest.report.machine import ROOT
from loadtest.service.attached import attach
from loadtest.service.gauges import RUNNING, WAITING, GaugeWatch, gauges, limits
from loadtest.service.memory import MIB, Memory, MemoryWatch, Series
from loadtest.soak.__main__ import capacity
from loadtest.soak.checks import MemoryCheck, check_bounds, check_memory, saturation
from loadtest.soak.load import SoakLoad
from loadtest.soak.plot import draw
from loadtest.soak.record import Report, by_minute, table
from tests.fakes.http import ScriptedGenerator
from tests.harness.http_clients import served

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


def checked(one: Series) -> MemoryCheck:
    every = series(lambda at_s: 500.0, pid=0)
    return check_memory([one, every], from_s=WARM_UP_S, limit=LIMIT)[0]


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
    assert checked(series(mib)).complaint == ""


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
    assert "the limit is 3%" in checked(series(mib)).complaint


def test_growth_is_reported_in_figures() -> None:
    found = checked(series(lambda at_s: 100 + 36 * at_s / 3600)).growth
    assert found is not None
    assert found.slope_mib_per_hour == pytest.approx(36, rel=1e-3)
    quarter_s = (LENGTH_S - WARM_UP_S) / 4
    # from the middle of the first quarter to the middle of the last
    assert found.late_mib - found.early_mib == pytest.approx(36 * 3 * quarter_s / 3600, rel=0.02)


def test_processes_that_come_and_go_are_complaints() -> None:
    assert "ended 500 s" in checked(series(noisy, [t for t in TIMES if t <= 500])).complaint
    assert "came 700 s" in checked(series(noisy, [t for t in TIMES if t >= 700])).complaint
    # One that is there from the end of the warm-up on is like any other.
    assert checked(series(noisy, [t for t in TIMES if t >= 100])).complaint == ""


def test_too_few_samples_are_a_complaint() -> None:
    short = [series(noisy, TIMES[:80]), series(noisy, TIMES[:80], pid=0)]
    assert "samples in a quarter" in check_memory(short, from_s=WARM_UP_S, limit=LIMIT)[0].complaint
    assert "no sample" in check_memory(short, from_s=LENGTH_S, limit=LIMIT)[0].complaint


def test_a_sum_is_checked_by_what_is_not_counted_twice() -> None:
    every = Series(kind="ours together", pid=0, is_ours=True)
    for at_s in TIMES:
        grown = round((100 + 10 * at_s / LENGTH_S) * MIB)
        every.add(at_s, Memory(private=100 * MIB, proportional=grown, resident=grown))
    assert "grew" in check_memory([every], from_s=WARM_UP_S, limit=LIMIT)[0].complaint


def test_gauges_must_stay_within_limits_and_be_seen() -> None:
    allowed = {"waiting": 64.0, "running": 32.0}
    assert check_bounds({"waiting": [0, 64], "running": [32]}, allowed) == []
    assert check_bounds({"waiting": [3, 65, 2], "running": [32]}, allowed) == [
        "waiting reached 65, the limit is 64"
    ]
    assert check_bounds({"waiting": [3]}, allowed) == ["running was never to be had"]


def test_saturation_is_the_share_of_full_samples() -> None:
    assert saturation([32, 30, 29, 28], 32) == 0.75
    assert saturation([], 32) == 0.0


def test_limits_are_those_of_the_config() -> None:
    import yaml

    config = yaml.safe_load((ROOT / "configs" / "demo.yaml").read_text())
    found = limits(config)
    assert (found[RUNNING], found[WAITING]) == (32, 64)
    assert (found["Target.num_sessions"], found["Draft.num_leases"]) == (36, 36)
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


def test_memory_of_real_processes_is_read() -> None:
    me = psutil.Process()
    watch = MemoryWatch(lambda: {"router": [me]}, lambda: [me])
    hoard = []
    for number in range(12):
        watch.sample(float(number))
        pages = mmap.mmap(-1, 4 * MIB)  # new ones, whatever this process has freed before
        pages.write(os.urandom(4 * MIB))
        hoard.append(pages)
    [router, ours, rays] = check_memory(watch.series, from_s=0.0, limit=LIMIT)
    assert router.series.pid == me.pid
    assert router.growth is not None
    # Medians of the first three and the last three samples: nine hoards of 4 MiB between them.
    assert router.growth.late_mib - router.growth.early_mib == pytest.approx(36, abs=6)
    assert len(hoard) == 12
    assert ours.growth is not None
    assert not rays.series.is_ours


def test_users_ask_until_they_are_stopped_and_failures_are_kept() -> None:
    workload = Workload("tiny", 1, max_tokens=20, record_max_tokens=90, shared_words=20)
    with served(ScriptedGenerator()) as url:
        load = SoakLoad(url, workload, num_users=4, seed=1, expects_same_text=True)
        load.start()
        while load.tally.ended.total() < 60:
            time.sleep(0.01)
        load.stop()
    tally = load.tally
    # The script answers "The bear." to everything: right for a chat, wrong for a record.
    assert tally.failed["chat"] == tally.failed["bad request"] == tally.failed["shared prompt"] == 0
    assert tally.failed["record"] == tally.ended["record"] > 0
    assert "not JSON" in tally.complaints[0]
    assert tally.num_tokens >= 3 * tally.ended["chat"] > 0


def test_a_report_says_everything_and_draws_it(tmp_path: Path) -> None:
    every = series(lambda at_s: 500.0, pid=0)
    leaking = series(lambda at_s: 100 + 10 * at_s / LENGTH_S)
    gone = series(noisy, TIMES[:90], pid=8)
    report = Report(length_s=LENGTH_S, warm_up_s=WARM_UP_S, limit=LIMIT)
    report.violations.append("memory of router 7: grew")
    report.memory = check_memory([leaking, gone, every], from_s=WARM_UP_S, limit=LIMIT)
    report.gauge_at_s = TIMES
    report.gauges = {RUNNING: [32.0] * len(TIMES), "Target.num_used_blocks": [9.0] * len(TIMES)}
    content = json.loads(json.dumps(report.content()))
    assert not content["all_held"]
    assert [process["pid"] for process in content["processes"]] == [7, 8, 0]
    private = content["processes"][0]["private_mib"]
    assert private["minute"] == list(range(20))
    assert (private["least"], private["greatest"]) == (100, pytest.approx(110, abs=0.1))
    assert content["processes"][1]["to_s"] == TIMES[89]
    assert content["gauges"][RUNNING]["last"] == 32
    assert "grew by" in table(report.memory)
    assert "ended" in table(report.memory)
    draw(content, tmp_path / "soak.png")
    assert (tmp_path / "soak.png").stat().st_size > 10_000


def test_minutes_keep_median_and_extremes() -> None:
    assert by_minute([0, 20, 59.9, 130], [1, 9, 2, 4.04], 1) == {
        "minute": [0, 2],
        "p50": [2, 4.0],
        "max": [9, 4.0],
        "least": 1,
        "greatest": 9,
        "last": 4.0,
    }
    assert by_minute([], [], 1)["least"] is None


def test_the_kept_result_has_its_figure_in_it(tmp_path: Path) -> None:
    content = json.loads((ROOT / "loadtest" / "results" / "soak.json").read_text())
    assert all(check["growth"]["share"] <= content["limit"] for check in content["processes"]
               if check["is_judged"])  # fmt: skip
    draw(content, tmp_path / "soak.png")
    assert (tmp_path / "soak.png").stat().st_size > 50_000


def test_only_a_service_of_ray_can_be_attached_to() -> None:
    with (
        served(ScriptedGenerator()) as url,
        pytest.raises(ValueError, match="which no raylet started"),
    ):
        attach(url)
    with pytest.raises(ValueError, match=r"no process .* listens at port 9"):
        attach("http://127.0.0.1:9")
