"""Which router a proxy sends a request to; no cluster is needed to see that."""

from __future__ import annotations

from typing import Any

from ray.serve._private.common import DeploymentHandleSource, DeploymentID, ReplicaID

from deployments.serve.nearest import READY_S
from deployments.serve.older_first import PATH, OlderFirst
from tests.deployments.serve.test_lease_router import run_with_pickled

PLACE = DeploymentID("Router", "app")


class Replica:
    """A router as far as a proxy must know it to choose it."""

    node_id, availability_zone = "node", None
    max_ongoing_requests = 100
    multiplexed_model_ids: frozenset[str] = frozenset()

    def __init__(self, name: str, ready_s: float | None) -> None:
        self.replica_id = ReplicaID(name, PLACE)
        self.replica_metadata = {} if ready_s is None else {READY_S: ready_s}


async def choices(**ready_s: float | None) -> list[list[str]]:
    router: Any = OlderFirst(
        deployment_id=PLACE, handle_source=DeploymentHandleSource.REPLICA, self_node_id="node"
    )
    router.update_replicas([Replica(name, at) for name, at in ready_s.items()])
    asked = await router.choose_replicas([])
    return [[one.replica_id.unique_id for one in together] for together in asked]


async def test_the_older_is_asked_first_and_the_other_where_it_has_no_room() -> None:
    for ready_s in ({"a": 7.0, "b": 5.0}, {"b": 5.0, "a": 7.0}):
        first, *others = await choices(**ready_s)
        assert first == ["b"]
        assert "a" in {name for together in others for name in together}
    assert (await choices(a=7.0))[0] == ["a"], "alone it has all"
    assert {*(await choices(a=None, b=None))[0]} == {"a", "b"}, "routers that tell no age are alike"
    assert await choices() == []


def test_a_proxy_that_has_only_ray_can_choose() -> None:
    run_with_pickled(
        PATH,
        "assert router.choose_replicas.__globals__['READY_S'] == 'ready_s'\n"
        "assert not any(name.startswith('deployments') for name in sys.modules)\n",
        cwd="/",
        env={},
    )
