"""The soak and overload commands against the served demo, for a short time."""

from __future__ import annotations

import asyncio
import json
import shlex
from pathlib import Path
from typing import Any

import pytest

from loadtest.client.client import LoadClient, Reply
from loadtest.client.workload import Asking, Workload
from loadtest.overload import __main__ as overload
from loadtest.service.gauges import RUNNING, WAITING
from loadtest.service.memory import OURS
from loadtest.soak import __main__ as soak
from tests.harness.served_demo import ServedDemo

pytestmark = [pytest.mark.ray, pytest.mark.slow, pytest.mark.timeout(600)]


def read(path: Path) -> dict[str, Any]:
    assert path.with_suffix(".png").stat().st_size > 10_000
    return json.loads(path.read_text())


def test_a_soak_watches_every_process_and_finds_nothing_held(
    demo: ServedDemo, tmp_path: Path
) -> None:
    output = tmp_path / "soak.json"
    # All of it is warm-up, so growth of any size is allowed; the rest must hold. A sample takes up
    # to six seconds on a busy machine, and each quarter needs three of them.
    options = shlex.split("--minutes 1.5 --warm-up 0 --limit 100 --max-tokens 40")
    soak.main(["--url", demo.base_url, *options, "--output", str(output)])
    found = read(output)
    # How full a busy machine keeps the service within seconds is not the point here.
    assert [v for v in found["violations"] if not v.startswith("the load filled")] == []
    judged = {process["kind"] for process in found["processes"] if process["is_judged"]}
    assert judged == {*OURS, "ours together"}
    reported = {process["kind"] for process in found["processes"] if not process["is_judged"]}
    assert {"proxy", "controller", "raylet", "gcs"} <= reported
    requests = found["requests"]["by_kind"]
    assert set(requests) >= {"chat", "record", "shared prompt", "bad request"}
    assert requests["chat"]["ended"] > 10
    assert found["requests"]["tokens_per_s"] > 0
    gauges = found["gauges"]
    assert gauges[RUNNING]["greatest"] > 0
    for name in (RUNNING, WAITING, "Target.num_leases"):
        assert gauges[name]["last"] == 0
    assert gauges["Target.num_used_blocks"]["greatest"] > 0
    assert found["machine"]["cores"]
    assert found["settings"]["seed"] == 1


def test_overload_is_measured_and_nothing_fails(demo: ServedDemo, tmp_path: Path) -> None:
    output = tmp_path / "overload.json"
    # Seconds are too short to hold the service to its goodput; nothing else may go wrong.
    options = shlex.split(
        "--first-rate 4 --step 20 --factors 20 --settle-s 1 --measured-s 4 --max-tokens 20 "
        "--goodput-loss 1 --refusal-limit 60 --first-text-limit 3 --late-limit 60"
    )
    overload.main(["--url", demo.base_url, *options, "--output", str(output)])
    found = read(output)
    assert found["sustained_per_s"] == 4
    # A fast machine may turn nobody away.
    assert [v for v in found["violations"] if "no overload" not in v] == []
    [last] = found["overload"]
    assert last["rate_per_s"] == 80
    assert last["good_share"] < 1
    assert not last["turned_away"] or last["retry_after_s"][0] >= 1
    assert last["peak_waiting"] <= 64
    assert last["failed"] == 0


def test_a_burst_beyond_every_queue_is_answered_whole_or_turned_away(demo: ServedDemo) -> None:
    workload = Workload("outrider-demo", 1, max_tokens=8, record_max_tokens=90, shared_words=20)

    async def burst(num_requests: int) -> list[Reply]:
        async with LoadClient(demo.base_url, expects_same_text=True) as client:
            asked = (client.ask(Asking(workload.chat(number))) for number in range(num_requests))
            return await asyncio.gather(*asked)

    # 32 run, 64 wait, 64 more may be refused by the router, 96 wait for it: the rest is Serve's.
    replies = asyncio.run(burst(300))
    assert [reply.complaint for reply in replies if reply.complaint] == []
    assert sum(reply.is_whole for reply in replies) >= 32
    assert sum(reply.is_turned_away for reply in replies) >= 20
