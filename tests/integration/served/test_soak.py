"""The trials soak and overload against the served demo, for a short time."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from loadtest.__main__ import main
from loadtest.client.client import LoadClient, Reply
from loadtest.client.workload import Asking, Workload
from loadtest.service.gauges import RUNNING, WAITING
from loadtest.service.memory import OURS
from tests.harness.served_demo import ServedDemo

pytestmark = [pytest.mark.ray, pytest.mark.slow, pytest.mark.timeout(600)]


def run(name: str, demo: ServedDemo, output: Path) -> dict[str, Any]:
    main([name, "--quick", "--url", demo.base_url, "--output", str(output)])
    assert output.with_suffix(".png").stat().st_size > 5_000
    return json.loads(output.read_text())


def missed(found: dict[str, Any]) -> list[str]:
    return [claim["text"] for claim in found["claims"] if not claim["is_met"]]


@pytest.mark.day(1)
def test_a_soak_watches_every_process_and_finds_nothing_held(
    demo: ServedDemo, tmp_path: Path
) -> None:
    found = run("soak", demo, tmp_path / "soak.json")
    assert found["problems"] == []
    # How full a busy machine keeps the service within seconds is not the point here.
    assert set(missed(found)) <= {"load, users: saturation"}
    rows = {(row["workload"], row["way"]): row["runs"] for row in found["samples"]}
    judged = {way.split(" ")[0] for workload, way in rows if workload == "memory"}
    assert judged == {*OURS, "ours"}
    reported = {way.split(" ")[0] for workload, way in rows if workload == "memory of Ray"}
    assert {"proxy", "controller", "raylet", "gcs"} <= reported
    requests = {way: runs for (workload, way), runs in rows.items() if workload == "requests"}
    assert set(requests) >= {"chat", "record", "shared prompt", "bad request"}
    assert requests["chat"]["ended"][0] > 10
    assert rows["load", "users"]["tokens_per_s"][0] > 0
    for name in (RUNNING, "Target.num_used_blocks"):
        assert rows["gauges", name]["most"][0] > 0
    for name in (RUNNING, WAITING, "Target.num_leases"):
        assert found["gauges"][name]["last"] == 0
    assert found["machine"]["cores"]
    assert found["settings"]["seed"] == 1


@pytest.mark.day(1)
def test_overload_is_measured_and_nothing_fails(demo: ServedDemo, tmp_path: Path) -> None:
    found = run("overload", demo, tmp_path / "overload.json")
    assert found["sustained_per_s"] == 4
    assert found["problems"] == []
    # A fast machine may turn nobody away.
    assert set(missed(found)) <= {"20 times: answers 429"}
    last = {name: values[0] for name, values in found["samples"][-1]["runs"].items()}
    assert last["rate_per_s"] == 80
    assert last["good_share"] < 1
    assert not last["turned_away"] or last["retry_after_least_s"] >= 1
    assert last["peak_waiting"] <= 64
    assert last["failed"] == 0


def test_a_burst_beyond_every_queue_is_answered_whole_or_turned_away(demo: ServedDemo) -> None:
    workload = Workload("outrider-demo", 1, max_tokens=8, record_max_tokens=90, shared_words=20)

    async def burst(num_requests: int) -> list[Reply]:
        async with LoadClient(demo.base_url, {}) as client:
            asked = (client.ask(Asking(workload.chat(number))) for number in range(num_requests))
            return await asyncio.gather(*asked)

    # 32 run, 64 wait, 64 more may be refused by the router, 96 wait for it: the rest is Serve's.
    replies = asyncio.run(burst(300))
    assert [reply.complaint for reply in replies if reply.complaint] == []
    assert sum(reply.is_whole for reply in replies) >= 32
    assert sum(reply.is_turned_away for reply in replies) >= 20
