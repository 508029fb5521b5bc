"""A lost replica is no choice for a lease; no cluster is needed to see that."""

from __future__ import annotations

from typing import Any, cast

import pytest
from ray.serve._private.common import DeploymentHandleSource, DeploymentID, ReplicaID
from ray.serve.request_router import PendingRequest

from deployments.serve import lease_router
from deployments.serve.avoided import AVOID_S, AvoidedReplicas
from deployments.serve.lease_router import LeaseRouter

PLACE = DeploymentID("Target", "app")


class Replica:
    """A replica as far as the router must know it to choose it."""

    node_id, availability_zone = "node", None
    multiplexed_model_ids: frozenset[str] = frozenset()

    def __init__(self, name: str) -> None:
        self.replica_id = ReplicaID(name, PLACE)


async def chosen(router: Any, num_choices: int = 40) -> set[str]:
    names, metadata = set(), cast("Any", Metadata())
    for _ in range(num_choices):
        [candidates] = await router.choose_replicas([], PendingRequest([], {}, metadata=metadata))
        names |= {one.replica_id.unique_id for one in candidates}
    return names


class Metadata:
    multiplexed_model_id = ""


@pytest.mark.parametrize("is_local_first", [False, True])
async def test_a_lost_replica_is_no_choice_for_a_while_unless_it_is_the_only_one(
    monkeypatch: pytest.MonkeyPatch, is_local_first: bool
) -> None:
    now_s = 100.0
    avoided = AvoidedReplicas(lambda: now_s)
    monkeypatch.setattr(lease_router, "avoided", avoided)
    source = DeploymentHandleSource.REPLICA
    router: Any = LeaseRouter(
        deployment_id=PLACE,
        handle_source=source,
        self_node_id="node",
        prefer_local_node_routing=is_local_first,
    )
    router.update_replicas([Replica(name) for name in ("a", "b", "c")])
    assert await chosen(router) == {"a", "b", "c"}
    avoided.add("")
    avoided.add("a")
    assert await chosen(router) == {"b", "c"}
    avoided.add("b")
    assert await chosen(router) == {"c"}
    avoided.add("c")
    assert await chosen(router) == {"a", "b", "c"}, "who has no other is tried all the same"
    now_s += AVOID_S
    assert await chosen(router) == {"a", "b", "c"}
    assert not avoided.names()
