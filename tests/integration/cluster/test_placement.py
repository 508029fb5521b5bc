"""configs/prod.yaml on nodes in name only: who runs where, lost nodes, and N drafts for M targets.

The tests build on each other, because a cluster takes long to start.
"""

from __future__ import annotations

import contextlib
import time
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest
import ray
from ray.util import placement_group_table

from loadtest.client.streams import FaultLoad
from loadtest.experiments.rolling import k_limit_is, refusal_is_reported, set_ranks
from loadtest.service.cluster import (
    DRAFT,
    ROLE,
    TARGET,
)
from loadtest.service.parts import actors
from loadtest.service.served import Config, options, section
from loadtest.trial.events import Deploy
from loadtest.trial.scene import Scene, Terms, happen
from tests.harness.held_services import HeldService
from tests.harness.local import DEMO, demo_tokenizer, local_service, make_request
from tests.harness.production import (
    CASES,
    HEADERS,
    KEY,
    LIMIT_S,
    Production,
    check_texts,
    wait_for,
)

pytestmark = [
    pytest.mark.ray,
    pytest.mark.slow,
    pytest.mark.timeout(900),
    pytest.mark.usefixtures("production"),
]


@pytest.fixture(scope="module")
def running(held: HeldService) -> Production:
    cluster: Production = held.get("production")
    cluster.make_whole()
    return cluster


def places() -> dict[str, Counter[str]]:
    """How many parts of each kind run on nodes of each role."""
    roles = {node["NodeID"]: node["Labels"].get(ROLE, "head") for node in ray.nodes()}
    found: dict[str, Counter[str]] = {}
    for part in actors():
        found.setdefault(part.kind, Counter())[roles[part.node_id]] += 1
    return found


def test_every_part_is_where_its_label_says(running: Production) -> None:
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


def test_each_rank_has_a_gpu_of_its_own(running: Production) -> None:
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


async def test_a_chat_has_the_text_of_one_process(running: Production) -> None:
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
        response = await client.post(url, json=body, headers=HEADERS)
    answer = response.json()
    assert answer["choices"][0]["message"]["content"] == await text_of_one_process(80)
    assert answer["metrics"]["speculative_decoding"]["num_accepted_draft_tokens"] > 0


def wait_answers(load: FaultLoad, number: int) -> None:
    """Wait until so many more requests have come to an end."""
    wanted = load.num_answers + number
    wait_for(lambda: load.num_answers >= wanted, f"not {number} more answers")


def num_steps(running: Production, name: str) -> list[float]:
    return sorted(stats["num_steps"] for stats in running.service.stats()[name])


def all_step(running: Production, name: str, number: int) -> bool:
    """Whether so many replicas of a deployment all computed something in the next second."""
    before = num_steps(running, name)
    time.sleep(1.0)
    after = num_steps(running, name)
    print(name, before, after)
    return len(after) == number and all(b > a for a, b in zip(before, after, strict=True))


@contextlib.contextmanager
def streams(running: Production) -> Iterator[FaultLoad]:
    """Streams that run until the block ends; each must have kept its text then."""
    load = running.load
    load.start()
    try:
        check_texts(load)
        yield load
    finally:
        load.stop()
    assert [str(failure) for failure in load.take_failures()] == []


def roll(
    running: Production, load: FaultLoad, config: Config, check: Callable[[], str] = str
) -> Scene:
    """Deploy a config under the streams; none may notice, and it must be in force."""
    scene = Scene(terms=Terms(), config=config, loads=[load], running=[load])
    scene.cluster, scene.watched = running.cluster, running.service
    deploy = Deploy(way="change", edit=lambda config: None, check=lambda scene: check())
    assert happen(scene, deploy, steady_s=120.0) == []
    return scene


def test_limits_change_under_streams_and_wrong_ones_are_refused(running: Production) -> None:
    base_url = running.cluster.base_url
    with streams(running) as load:

        def limit(user_config: Any, check: Callable[[], str]) -> None:
            config = running.config()
            options(config, "Router")["user_config"] = user_config
            scene = roll(running, load, config, check)
            assert scene.notes["replaced"] == {}, "limits change in place"

        lower = {"speculation": {"max_num_speculative_tokens": 4}}
        limit(lower, lambda: k_limit_is(base_url, 4, KEY))
        wrong = {"speculation": {"max_num_speculative_tokens": 5}, "max_sesions": 9}
        limit(wrong, lambda: k_limit_is(base_url, 4, KEY) or refusal_is_reported(base_url))
        limit(None, lambda: k_limit_is(base_url, 8, KEY))


@pytest.mark.day(1)
def test_a_lost_draft_is_not_missed_and_two_share_the_work_when_nodes_are_back(
    running: Production,
) -> None:
    with streams(running) as load:
        running.lose(DRAFT)
        wait_for(
            lambda: not running.service.parts()["draft-rank"], "the draft's process is still there"
        )
        wait_answers(load, len(CASES))
        assert not running.service.parts()["draft-rank"], "somebody else took the draft in"
        running.add(DRAFT)
        running.add(DRAFT)
        running.deploy(Draft=2)
        assert places()["draft-rank"] == Counter(draft=2)
        assert places()["target-rank"] == Counter(target=4)
        wait_for(lambda: all_step(running, "Draft", 2), "not both drafts are used")
        assert all_step(running, "Target", 1)


@pytest.mark.day(2)
def test_two_targets_share_a_draft_and_one_may_be_lost(running: Production) -> None:
    running.add(TARGET)
    running.deploy(Target=2)
    assert places()["target-rank"] == Counter(target=8)
    assert places()["draft-rank"] == Counter(draft=1)
    with streams(running) as load:
        wait_for(lambda: all_step(running, "Target", 2), "not both targets are used")
        wait_for(lambda: all_step(running, "Draft", 1), "the draft is not used")
        running.lose(TARGET)
        wait_for(
            lambda: len(running.service.parts()["target-rank"]) == 4, "not four ranks are left"
        )
        wait_answers(load, len(CASES))


@pytest.mark.day(1)
def test_a_key_of_args_replaces_its_own_application_alone(running: Production) -> None:
    """First a key of the router; then four ranks become one where a node is to spare.

    The second target that is still wanted comes and goes first, or it would while the key changes.
    """
    running.add(TARGET)
    running.deploy(Target=2)
    running.deploy()
    config = running.config()
    section(config, "router")["default_max_tokens"] = 7
    with streams(running) as load:
        replaced: Any = roll(running, load, config).notes["replaced"]
        assert "router" in replaced
        assert not {kind for kind in replaced if kind.startswith(("target", "draft"))}
        running.num_ranks = 1
        set_ranks(config, 1)
        options(config, "Target")["max_surge_percent"] = 100
        replaced = roll(running, load, config).notes["replaced"]
        assert {"target-rank", "target-coordinator"} == set(replaced)
    assert places()["target-rank"] == Counter(target=1)
    body = {"model": "outrider-demo", "messages": [QUESTION], "ignore_eos": True}
    url = f"{running.cluster.base_url}/v1/chat/completions"
    answer = httpx.post(url, json=body, headers=HEADERS, timeout=60)
    assert answer.json()["usage"]["completion_tokens"] == 7
    assert running.service.wait_freed(LIMIT_S) == []
