"""The place of all pods: a network, volumes, secrets, a file of names; Redis and the Job.

All clusters of a RayService share it: that of a release, and that of the next one beside it.
"""

from __future__ import annotations

import itertools
import secrets
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from loadtest.rehearse.manifests import Manifests, PodTemplate
from loadtest.rehearse.pods import Network, Pod
from loadtest.rehearse.substitutions import NAMES, substituted_job


@dataclass(kw_only=True)
class Site:
    """Makes pods, and gives Services their names.

    Args:
        folder: logs and volumes.
        environment: of every pod, beneath its own.
        fetch_s: how long the Job takes to bring the models.
    """

    folder: Path
    environment: Mapping[str, str]
    fetch_s: float = 0.0
    network: Network = field(default_factory=Network)
    token: str = field(default_factory=lambda: secrets.token_hex(16))  # of Ray
    secret_values: dict[str, str] = field(default_factory=dict)
    _pods: list[Pod] = field(default_factory=list)  # that are of no cluster
    _numbers: Iterator[int] = field(default_factory=itertools.count)
    _names: dict[str, str] = field(default_factory=dict)  # of Services, with their addresses

    def start(self, manifests: Manifests) -> None:
        """Start what is no part of a cluster: Redis, and the Job."""
        self.secret_values |= {
            "outrider-redis/password": secrets.token_hex(16),
            "RAY_AUTH_MODE": manifests.service["rayClusterConfig"]["authOptions"]["mode"],
            "RAY_AUTH_TOKEN": self.token,
        }
        for store in manifests.stores:
            words = store.container["command"] + store.container["args"]
            pod = self.make(store, words)
            self._pods.append(pod)
            self.name(store.group, pod)
        job = substituted_job(manifests.job, self.fetch_s)
        self._pods.append(self.make(job, [*job.container["command"], *job.container["args"]]))

    def make(
        self, template: PodTemplate, main: Sequence[str], environment: Mapping[str, str] = {}
    ) -> Pod:
        """Start a pod; `environment` is what an operator gives it."""
        name = f"{template.group}-{next(self._numbers)}"
        pod = Pod(
            name=name,
            template=template,
            network=self.network,
            folder=self.folder / name,
            volumes={
                "models": self._volume("models"),
                "data": self._volume("data"),
                "api-keys": self.folder / "secrets",
            },
            hosts=self._hosts,
            environment={**self.environment, **NAMES, **self.secret_values, **environment},
        )
        pod.start(main)
        return pod

    def name(self, service: str, pod: Pod) -> None:
        """Let a Service's name mean a pod from now on; the file stays, as all pods have it."""
        self._names[service] = pod.address
        lines = [f"{address} {name}\n" for name, address in self._names.items()]
        self._hosts.write_text("127.0.0.1 localhost\n" + "".join(lines), encoding="utf-8")

    def close(self) -> None:
        """End the pods that are of no cluster, and the network."""
        for pod in self._pods:
            pod.kill()
        self.network.close()

    @property
    def _hosts(self) -> Path:
        path = self.folder / "hosts"
        path.touch()
        return path

    def _volume(self, name: str) -> Path:
        path = self.folder / "volumes" / name
        path.mkdir(parents=True, exist_ok=True)
        path.chmod(0o777)
        return path
