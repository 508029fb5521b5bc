"""configs/prod.yaml on nodes in name only: who runs where, lost nodes, and N drafts for M targets.

The nodes are raylets on this machine with the production labels and GPUs that only Ray counts; the
config is read from the file and fitted by `on_one_machine`. The tests build on each other, because
a cluster takes long to start.
"""

from __future__ import annotations

import hashlib
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest
import ray
from local_service import DEMO, demo_tokenizer, local_service, make_request
from ray.util import placement_group_table

from loadtest.cluster import (
    DRAFT,
    ROLE,
    ROUTER,
    TARGET,
    PrivateCluster,
    deployment,
    on_one_machine,
    private_cluster,
)
from loadtest.fault_cases import constrained_cases, free_cases
from loadtest.fault_load import FaultLoad
from loadtest.fault_service import FaultService, actors
from loadtest.served import ROOT

pytestmark = [pytest.mark.ray, pytest.mark.slow, pytest.mark.timeout(300)]

KEY = "a-key-for-tests"
START_LIMIT_S = 150.0
WHOLE_LIMIT_S = 90.0
CASES = [*free_cases(2, num_tokens=120), *constrained_cases(2, num_orders=2)]


@dataclass
class Running:
    """The cluster, what runs on it, and its nodes by role, oldest first."""

    cluster: PrivateCluster
    service: FaultService
    keys_file: Path
    nodes: dict[str, list[Any]] = field(default_factory=dict)

    def deploy(self, **num_replicas: int) -> None:
        """prod.yaml with other numbers of replicas, in force."""
        config = on_one_machine(ROOT / "configs" / "prod.yaml", api_keys_file=self.keys_file)
        for name, number in num_replicas.items():
            deployment(config, name)["num_replicas"] = number
        self.cluster.deploy(config)
        self.service.wait_deployed(WHOLE_LIMIT_S)

    def load(self) -> FaultLoad:
        """Streams with their texts, not running yet."""
        load = FaultLoad(self.cluster.base_url, CASES, api_key=KEY)
        load.collect_references()
        return load


def write_keys(folder: Path) -> Path:
    path = folder / "keys"
    path.write_text(f"tests {hashlib.sha256(KEY.encode()).hexdigest()}\n", encoding="utf-8")
    return path


def wait_healthy(base_url: str) -> None:
    deadline = time.monotonic() + START_LIMIT_S
    while True:
        try:
            answer = httpx.get(f"{base_url}/health", timeout=15)
        except httpx.HTTPError as error:
            said = repr(error)
        else:
            if answer.status_code == httpx.codes.OK:
                return
            said = answer.text
        assert time.monotonic() < deadline, said
        time.sleep(0.5)


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    keys_file = write_keys(tmp_path_factory.mktemp("secrets"))
    with private_cluster() as cluster:
        nodes = {role.name: [cluster.add(role)] for role in (ROUTER, DRAFT, TARGET)}
        cluster.deploy(on_one_machine(ROOT / "configs" / "prod.yaml", api_keys_file=keys_file))
        wait_healthy(cluster.base_url)
        with FaultService(cluster) as service:
            yield Running(cluster, service, keys_file, nodes)


def places() -> dict[str, Counter[str]]:
    """How many parts of each kind run on nodes of each role."""
    roles = {node["NodeID"]: node["Labels"].get(ROLE, "head") for node in ray.nodes()}
    found: dict[str, Counter[str]] = {}
    for part in actors():
        found.setdefault(part.kind, Counter())[roles[part.node_id]] += 1
    return found


def test_every_part_is_where_its_label_says(running: Running) -> None:
    assert places() == {
        "router": Counter(router=2),
        "constraint-replica": Counter(router=2),
        "target-coordinator": Counter(target=1),
        "target-rank": Counter(target=4),
        "draft-coordinator": Counter(draft=1),
        "draft-rank": Counter(draft=1),
        "controller": Counter(head=1),
        "proxy": Counter(head=1),
    }


def test_each_rank_has_a_gpu_of_its_own(running: Running) -> None:
    groups = [g for g in placement_group_table().values() if g["state"] == "CREATED"]
    gpus = sorted([bundle["GPU"] for bundle in g["bundles"].values()] for g in groups)
    assert gpus == [[1.0], [1.0, 1.0, 1.0, 1.0]]
    assert ray.cluster_resources()["GPU"] == 5
    assert ray.available_resources().get("GPU", 0) == 0


QUESTION = {"role": "user", "content": "Write a short story about a dog and a ball."}


async def text_of_one_process(max_tokens: int) -> str:
    """What one engine of one rank writes, without a draft, in this process."""
    tokenizer = demo_tokenizer()
    request = make_request(
        "alone",
        tokenizer.encode_chat([QUESTION]),
        enabled=False,
        max_tokens=max_tokens,
        temperature=0.7,
        seed=11,
        eos_ids=tokenizer.eos_ids,
    )
    async with local_service(DEMO / "target", None, dtype="float32") as service:
        _, _, text = await service.generate(request, tokenizer.detokenizer())
    return text


async def test_a_chat_has_the_text_of_one_process(running: Running) -> None:
    body = {
        "model": "outrider-demo",
        "messages": [QUESTION],
        "temperature": 0.7,
        "seed": 11,
        "max_tokens": 80,
        "speculation": {"k": 3, "drafter": "draft_model"},
    }
    url = f"{running.cluster.base_url}/v1/chat/completions"
    async with httpx.AsyncClient(timeout=60) as client:
        refused = await client.post(url, json=body)
        assert refused.status_code == httpx.codes.UNAUTHORIZED
        response = await client.post(url, json=body, headers={"authorization": f"Bearer {KEY}"})
    answer = response.json()
    assert answer["choices"][0]["message"]["content"] == await text_of_one_process(80)
    assert answer["metrics"]["speculative_decoding"]["num_accepted_draft_tokens"] > 0
