"""A draft model is swapped by `user_config` while 16 streams run: no text changes, none is lost.

A real service on a private cluster; every stream is compared with the text it had before.
"""

from __future__ import annotations

import copy
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from loadtest.client.cases import constrained_cases, free_cases
from loadtest.client.streams import FaultLoad
from loadtest.report.machine import ROOT
from loadtest.service.cluster import PrivateCluster, Role, private_cluster
from loadtest.service.parts import FaultService
from loadtest.service.served import Config, options
from tests.harness.local import DEMO

pytestmark = [pytest.mark.ray, pytest.mark.slow, pytest.mark.timeout(600)]

LIMIT_S = 300.0
NUM_STREAMS = 16


def demo_config() -> Config:
    config: Config = yaml.safe_load((ROOT / "configs" / "demo.yaml").read_text(encoding="utf-8"))
    args = config["applications"][0]["args"]
    for name in ("target", "draft"):  # whatever the working folder of a replica is
        args[name]["model_path"] = str(DEMO / name)
    args["router"]["tokenizer_path"] = str(DEMO / "target")
    return config


def until(is_so: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + LIMIT_S
    while not is_so():
        assert time.monotonic() < deadline, what
        time.sleep(0.2)


class Swapping:
    """The service, its streams, and what is seen of the swap."""

    def __init__(self, cluster: PrivateCluster, service: FaultService, load: FaultLoad) -> None:
        self._cluster, self._service, self._load = cluster, service, load

    def ask_for(self, user_config: dict[str, Any] | None) -> None:
        config = copy.deepcopy(demo_config())
        if user_config is not None:
            options(config, "Draft")["user_config"] = user_config
        self._cluster.deploy(config)

    def value(self, name: str, **labels: str) -> float:
        """Of a metric of the draft replica, on a router's page."""
        page = httpx.get(f"{self._cluster.base_url}/metrics", timeout=20).text
        wanted = [f'{key}="{value}"' for key, value in labels.items()]
        for line in page.splitlines():
            if line.startswith(f"{name}{{") and all(one in line for one in wanted):
                return float(line.rpartition(" ")[2])
        return 0.0

    def is_in(self, state: str) -> bool:
        return self.value("outrider:draft_swap", state=state) == 1.0

    def pids(self) -> set[int]:
        return {part.pid for part in self._service.parts()["draft-rank"]}

    def replica(self) -> set[int]:
        return {part.pid for part in self._service.parts()["draft-coordinator"]}

    def check_streams(self) -> None:
        """All go on, and none has had another text or an error."""
        assert self._load.wait_steady(LIMIT_S)
        assert [str(failure) for failure in self._load.take_failures()] == []


@pytest.fixture
def swapping() -> Iterator[Swapping]:
    with private_cluster() as cluster:
        cluster.add(Role("any", num_cpus=8))
        cluster.deploy(demo_config())
        cluster.wait_healthy(LIMIT_S)
        with FaultService(cluster) as service:
            service.wait_deployed(LIMIT_S)
            cases = [*free_cases(NUM_STREAMS - 4, num_tokens=120), *constrained_cases(4)]
            load = FaultLoad(cluster.base_url, cases)
            load.prepare()
            load.start()
            try:
                yield Swapping(cluster, service, load)
            finally:
                load.stop()
            assert load.take_failures() == []
            assert service.wait_freed(60) == []


def test_a_draft_model_is_swapped_under_streams(swapping: Swapping, tmp_path: Path) -> None:
    [first], replica = swapping.pids(), swapping.replica()
    swapping.check_streams()

    # The target's own weights as a draft: it says all of the texts, the shipped draft does not.
    swapping.ask_for({"model_path": str(DEMO / "target"), "compare_answers": 6})
    until(lambda: swapping.is_in("promoted"), "not promoted")
    said = {
        model: swapping.value("outrider:draft_swap_tokens_total", model=model, said="yes")
        for model in ("old", "new")
    }
    assert said["new"] > said["old"] > 0
    until(lambda: first not in swapping.pids(), "the old model was not freed")
    [second] = swapping.pids()
    swapping.check_streams()

    # Not there, of other words, cut off: refused by what a check reads, and the old one serves on.
    refused = (
        tmp_path / "nothing",
        other_words(tmp_path / "words"),
        broken(tmp_path / "broken"),
    )
    for folder in refused:
        swapping.ask_for({"model_path": str(folder)})
        until(lambda: swapping.value("outrider:draft_swap_refused") == 1.0, "not refused")
        assert swapping.pids() == {second}
        swapping.ask_for({"model_path": str(DEMO / "target")})
        until(lambda: swapping.value("outrider:draft_swap_refused") == 0.0, "still refused")

    # It says less of the texts: dropped.
    less = shutil.copytree(DEMO / "draft", tmp_path / "less")
    swapping.ask_for({"model_path": str(less), "compare_answers": 6})
    until(lambda: swapping.is_in("dropped"), "not dropped")
    until(lambda: swapping.pids() == {second}, "it was not freed")
    swapping.check_streams()

    # Taken away: the model of `args` comes back.
    swapping.ask_for(None)
    until(lambda: swapping.is_in("promoted"), "not promoted")
    until(lambda: second not in swapping.pids(), "the other model was not freed")
    swapping.check_streams()
    assert swapping.replica() == replica, "the replica was replaced"


def other_words(folder: Path) -> Path:
    shutil.copytree(DEMO / "draft", folder)
    path = folder / "tokenizer.json"
    path.write_text(path.read_text().replace('"Once"', '"Twice"', 1).replace('"the"', '"eht"', 1))
    return folder


def broken(folder: Path) -> Path:
    shutil.copytree(DEMO / "draft", folder)
    [weights] = folder.glob("*.safetensors")
    weights.write_bytes(weights.read_bytes()[:1000])
    return folder
