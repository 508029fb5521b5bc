"""Which replica a lease is asked of; no cluster is needed to see that."""

from __future__ import annotations

import subprocess
import sys
from typing import Any, ClassVar, cast

import pytest
from ray.serve._private.common import DeploymentHandleSource, DeploymentID, ReplicaID
from ray.serve.config import RequestRouterConfig
from ray.serve.request_router import PendingRequest, RunningReplica

from deployments.serve import timed_names
from deployments.serve.lease_router import LeaseReplica, LeaseRouter
from deployments.serve.nearest import FEW_SESSIONS, READY_S, has_room, nearest
from deployments.serve.timed_names import AVOID_S, FULL_S, TimedNames
from models.protocol.leases import LeaseRequest

PLACE = DeploymentID("Target", "app")


class Replica(LeaseReplica):
    """A replica as far as the router must know it to choose it."""

    node_id, availability_zone = "node", None
    max_ongoing_requests = 100
    multiplexed_model_ids: ClassVar[set[str]] = set()

    def __init__(self, name: str, ready_s: float | None = None) -> None:
        self._name = name
        self._metadata = {} if ready_s is None else {READY_S: ready_s}

    @property
    def replica_id(self) -> ReplicaID:
        return ReplicaID(self._name, PLACE)

    @property
    def replica_metadata(self) -> dict[str, Any]:
        return self._metadata


def asked(key: str = "") -> PendingRequest:
    wanted = LeaseRequest(session_id="s", public_key="k", prefix_key=key)
    return PendingRequest([wanted], {}, metadata=cast("Any", Metadata()))


def names_of(replicas: Any) -> set[str]:
    return {one.replica_id.unique_id for one in replicas}


async def chosen(router: Any, num_choices: int = 40) -> set[str]:
    names = set()
    for _ in range(num_choices):
        candidates, *_ = await router.choose_replicas([], asked())
        names |= names_of(candidates)
    return names


def lease_router(*names: str, is_local_first: bool = False, **ready_s: float) -> Any:
    router: Any = LeaseRouter(
        deployment_id=PLACE,
        handle_source=DeploymentHandleSource.REPLICA,
        self_node_id="node",
        prefer_local_node_routing=is_local_first,
        use_replica_queue_len_cache=True,
    )
    router.update_replicas([Replica(name, ready_s.get(name)) for name in (*names, *ready_s)])
    return router


class Metadata:
    multiplexed_model_id = ""


@pytest.fixture
def avoided(monkeypatch: pytest.MonkeyPatch) -> TimedNames:
    """Names of lost replicas, of this test alone."""
    here = TimedNames(AVOID_S)
    monkeypatch.setattr(timed_names, "_avoided", here)
    return here


@pytest.mark.parametrize("is_local_first", [False, True])
async def test_a_lost_replica_is_no_choice_for_a_while_unless_it_is_the_only_one(
    monkeypatch: pytest.MonkeyPatch, is_local_first: bool
) -> None:
    now_s = 100.0
    here = TimedNames(AVOID_S, lambda: now_s)
    monkeypatch.setattr(timed_names, "_avoided", here)
    router = lease_router("a", "b", "c", is_local_first=is_local_first)
    assert await chosen(router) == {"a", "b", "c"}
    here.add("")
    here.add("a")
    assert await chosen(router) == {"b", "c"}
    _, last = await router.choose_replicas([], asked())
    assert names_of(last) == {"a"}, "for the case that all others are full"
    here.add("b")
    assert await chosen(router) == {"c"}
    here.add("c")
    assert await chosen(router) == {"a", "b", "c"}, "who has no other is tried all the same"
    now_s += AVOID_S
    assert await chosen(router) == {"a", "b", "c"}
    assert not here.names()


async def first_choice(router: Any, key: str) -> str:
    """The only replica that is asked first, or "" where two are."""
    first, *_ = await router.choose_replicas([], asked(key))
    [*names] = names_of(first)
    return names[0] if len(names) == 1 else ""


def load(router: Any, **num_sessions: int) -> None:
    for name, number in num_sessions.items():
        router.on_new_queue_len_info(ReplicaID(name, PLACE), number)


async def test_texts_that_begin_alike_go_to_one_replica_whoever_routes_them() -> None:
    one, other = lease_router("a", "b", "c"), lease_router("c", "b", "a")
    keys = [f"key {number}" for number in range(60)]
    places = [await first_choice(one, key) for key in keys]
    assert places == [await first_choice(other, key) for key in keys]
    assert {places.count(name) >= 10 for name in "abc"} == {True}, "keys are spread"
    without = lease_router("a", "b")
    moved = [await first_choice(without, key) for key in keys]
    stayed = [(old, new) for old, new in zip(places, moved, strict=True) if old != "c"]
    assert all(old == new for old, new in stayed), "only the lost replica's keys move"


async def test_a_fuller_replica_gets_no_more_for_the_sake_of_its_cache() -> None:
    router = lease_router("a", "b")
    key = next(f"{n}" for n in range(99) if nearest(f"{n}", "ab") == "a")
    load(router, a=FEW_SESSIONS - 1, b=0)
    assert await first_choice(router, key) == "a"
    load(router, a=FEW_SESSIONS)
    assert await first_choice(router, key) == "", "the emptier of two, as for any other"
    load(router, a=49, b=40)
    assert await first_choice(router, key) == "a"
    load(router, a=50)
    assert await first_choice(router, key) == ""
    assert not has_room(5, 0)


async def test_a_replica_that_rejects_a_request_is_full(monkeypatch: pytest.MonkeyPatch) -> None:
    here = TimedNames(FULL_S)
    monkeypatch.setattr(timed_names, "_full", here)
    router = lease_router("a", "b")
    load(router, a=99, gone=100)
    assert not here.names()
    load(router, b=100)
    assert [*here.names()] == ["Target"]


def run_with_pickled(path: Any, checks: str, **options: Any) -> None:
    """Run these lines in a process to which Serve has sent the class as `router`."""
    config = RequestRouterConfig(request_router_class=path)
    pickled = config.get_serialized_request_router_cls()
    assert pickled is not None
    reads = "import sys; from ray import cloudpickle\n"
    reads += "router = cloudpickle.loads(sys.stdin.buffer.read())\n"
    words = [sys.executable, "-c", reads + checks]
    ended = subprocess.run(words, input=pickled, capture_output=True, **options)
    assert ended.returncode == 0, ended.stderr.decode()


def test_serves_copy_of_the_class_hears_of_its_process() -> None:
    """Serve pickles the module by value: objects in it would be copied too."""
    run_with_pickled(
        f"{LeaseRouter.__module__}:LeaseRouter",
        "from deployments.serve.timed_names import avoided, full\n"
        "assert 'deployments.serve.lease_router' not in sys.modules\n"
        "assert router._preferred.__globals__['avoided']() is avoided()\n"
        "replica = router.create_replica_wrapper.__globals__['LeaseReplica']\n"
        "assert replica.get_queue_len.__globals__['full']() is full()",
    )


async def test_an_avoided_replica_is_not_preferred_either(avoided: TimedNames) -> None:
    router = lease_router("a", "b", "c")
    before = await first_choice(router, "key")
    avoided.add(before)
    after = await first_choice(router, "key")
    assert after not in ("", before)
    assert await first_choice(lease_router("a"), "key") == "a", "the only one is the only choice"


async def test_a_request_without_a_key_or_of_another_kind_is_balanced() -> None:
    router = lease_router("a", "b", "c")
    assert await first_choice(router, "") == ""
    other_kind = PendingRequest(["body"], {}, metadata=cast("Any", Metadata()))
    [two] = await router.choose_replicas([], other_kind)
    assert len(two) == 2


async def test_beside_a_spare_all_requests_try_the_oldest_first_however_full_it_is(
    avoided: TimedNames,
) -> None:
    router = lease_router(a=7.0, b=5.0)
    load(router, b=99)
    assert {await first_choice(router, f"{n}") for n in range(20)} == {"b"}, "whatever the prompt"
    assert await first_choice(lease_router(b=5.0, a=7.0), "") == "b", "whoever routes it"
    _, *others = await router.choose_replicas([], asked())
    assert "a" in set().union(*map(names_of, others)), "it has what the other has no room for"
    avoided.add("b")
    assert await first_choice(router, "") == "a"
    router.update_replicas([Replica("a", 7.0), Replica("c", 9.0)])
    assert await first_choice(router, "") == "a", "who took over keeps its sessions' successors"


@pytest.mark.parametrize("has_spare", [True, False])
async def test_a_replica_with_a_spare_is_not_probed_while_it_answers_and_has_room(
    monkeypatch: pytest.MonkeyPatch, has_spare: bool
) -> None:
    probed = []

    async def answer(self: Replica, *, deadline_s: float) -> int:
        probed.append(self)
        return 7

    monkeypatch.setattr(RunningReplica, "get_queue_len", answer)
    router = lease_router(a=5.0) if has_spare else lease_router("a")
    [replica] = router.curr_replicas.values()
    saved = int(has_spare)
    assert await replica.get_queue_len(deadline_s=1.0) == 7
    assert await replica.get_queue_len(deadline_s=1.0) == 7
    assert len(probed) == 2 - saved
    load(router, a=100)
    assert await replica.get_queue_len(deadline_s=1.0) == 7, "a full one is asked again"
    assert len(probed) == 3 - saved
    router.on_replica_actor_unavailable(replica.replica_id)
    await replica.get_queue_len(deadline_s=1.0)
    assert len(probed) == 4 - saved, "one that was silent is asked again"
