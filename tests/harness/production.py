"""configs/prod.yaml on nodes in name only, for tests that deploy to a cluster as an operator does.

The nodes are raylets on this machine with the production labels and GPUs that only Ray counts. The
config is read from the file and fitted by `on_one_machine`. All tests share one cluster, which
takes long to start: they build on each other.
"""

from __future__ import annotations

import contextlib
import hashlib
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import cached_property
from pathlib import Path
from typing import Any

import ray

from loadtest.client.cases import constrained_cases, free_cases
from loadtest.client.streams import FaultLoad
from loadtest.experiments.rolling import set_ranks
from loadtest.report.machine import ROOT
from loadtest.service.cluster import (
    DRAFT,
    ROUTER,
    TARGET,
    PrivateCluster,
    Role,
    on_one_machine,
    private_cluster,
)
from loadtest.service.parts import FaultService, leave_ray
from loadtest.service.served import Config, options

KEY = "a-key-for-tests"
HEADERS = {"authorization": f"Bearer {KEY}"}
LIMIT_S = 300.0
CASES = [*free_cases(2, num_tokens=80), *constrained_cases(2, num_orders=1)]
_ROLES = (ROUTER, DRAFT, TARGET)


class Production:
    """The cluster, what runs on it, and its nodes by role, oldest first.

    Attributes:
        num_ranks: of a target in `config`; 0: as the file says.
    """

    def __init__(self, cluster: PrivateCluster, keys_file: Path) -> None:
        self.cluster = cluster
        self.num_ranks = 0
        self._keys_file = keys_file
        self._nodes: dict[str, list[Any]] = {role.name: [] for role in _ROLES}
        self._until = contextlib.ExitStack()

    def config(self) -> Config:
        """prod.yaml as it runs here."""
        config = on_one_machine(ROOT / "configs" / "prod.yaml", api_keys_file=self._keys_file)
        if self.num_ranks:
            set_ranks(config, self.num_ranks)
        return config

    @property
    def is_new(self) -> bool:
        """True if it has no node yet but the head."""
        return not any(self._nodes.values())

    @contextlib.contextmanager
    def connected(self) -> Iterator[None]:
        """Ray's own view of it until the block ends, where `service` was not used yet."""
        ray.init(address=self.cluster.gcs_address(), log_to_driver=False, namespace="faults")
        try:
            yield
        finally:
            leave_ray()

    @cached_property
    def service(self) -> FaultService:
        """Parts and books of what runs; connected to Ray from the first use on."""
        return self._until.enter_context(FaultService(self.cluster))

    @cached_property
    def load(self) -> FaultLoad:
        """Streams with their texts, not running."""
        load = FaultLoad(self.cluster.base_url, CASES, api_key=KEY)
        load.prepare()
        return load

    def make_whole(self) -> None:
        """Have a node of each role, and all that the config wants on them."""
        for role in _ROLES:
            if not self._nodes[role.name]:
                self.add(role)
        self.cluster.deploy(self.config())
        self.cluster.wait_healthy(LIMIT_S)
        self.service.wait_deployed(LIMIT_S)

    def deploy(self, **num_replicas: int) -> None:
        """Deploy the config with other numbers of replicas; in force at the end."""
        config = self.config()
        for name, number in num_replicas.items():
            options(config, name)["num_replicas"] = number
        self.cluster.deploy(config)
        self.service.wait_deployed(LIMIT_S)

    def add(self, role: Role) -> None:
        """Add a node of this role."""
        self._nodes[role.name].append(self.cluster.add(role))

    def lose(self, role: Role) -> None:
        """Lose the oldest node of a role, with all that runs on it."""
        self.cluster.remove(self._nodes[role.name].pop(0))

    def close(self) -> None:
        """Forget its parts."""
        self._until.close()


@contextlib.contextmanager
def production() -> Iterator[Production]:
    """A head with a key for clients, and nothing else yet, until the block ends."""
    with tempfile.TemporaryDirectory() as folder, _cluster() as cluster:
        keys_file = Path(folder) / "keys"
        digest = hashlib.sha256(KEY.encode()).hexdigest()
        keys_file.write_text(f"tests {digest}\n", encoding="utf-8")
        running = Production(cluster, keys_file)
        try:
            yield running
        finally:
            running.close()


def _cluster() -> contextlib.AbstractContextManager[PrivateCluster]:
    return private_cluster(also_importable=(ROOT / "tests" / "harness",))


def wait_for(is_so: Callable[[], bool], what: str, limit_s: float = LIMIT_S) -> None:
    """Wait until something is so; `what` says what is not, if it never is."""
    deadline = time.monotonic() + limit_s
    while not is_so():
        assert time.monotonic() < deadline, what
        time.sleep(0.2)


def check_texts(load: FaultLoad) -> None:
    """All streams go on, and none has had another text or an error."""
    assert load.wait_steady(LIMIT_S)
    assert [str(failure) for failure in load.take_failures()] == []
