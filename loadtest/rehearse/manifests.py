"""Reads what kustomize makes of a folder of manifests: pods, the RayService, budgets, the Job."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

Tree = dict[str, Any]

_RENDER_LIMIT_S = 60.0
_UNITS = {"Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40}
HEAD = "head"


@dataclass(frozen=True, kw_only=True)
class PodTemplate:
    """The pods of one group.

    Attributes:
        group: its name in the RayService; "head" for the head's.
        spec: of the pod, as Kubernetes would have it.
        labels: of the pod.
        start: parameters of `ray start`, as KubeRay completes them.
        node_labels: of the Ray node.
        replicas: that are there from the beginning.
    """

    group: str
    spec: Tree
    labels: Mapping[str, str] = field(default_factory=dict)
    start: Mapping[str, str] = field(default_factory=dict)
    node_labels: Mapping[str, str] = field(default_factory=dict)
    replicas: int = 1

    @property
    def container(self) -> Tree:
        """The container of Ray."""
        first: Tree = self.spec["containers"][0]
        return first

    @property
    def environment(self) -> dict[str, str]:
        """The variables of that container that have a value in the manifests."""
        return {one["name"]: one["value"] for one in self.container["env"] if "value" in one}

    @property
    def grace_s(self) -> float:
        """The time between the signal that ends a pod and the one that kills it, s."""
        return float(self.spec.get("terminationGracePeriodSeconds", 30))


@dataclass(frozen=True)
class Manifests:
    """All resources of a folder, after kustomize."""

    resources: Sequence[Tree]

    @classmethod
    def of(cls, folder: Path) -> Manifests:
        """Render a folder.

        Raises:
            ValueError: kubectl refuses the folder; with what it said.
        """
        done = subprocess.run(
            ["kubectl", "kustomize", str(folder)],
            capture_output=True,
            text=True,
            timeout=_RENDER_LIMIT_S,
            check=False,
        )
        if done.returncode != 0:
            raise ValueError(f"kubectl kustomize {folder}: {done.stderr.strip()}")
        return cls([one for one in yaml.safe_load_all(done.stdout) if one])

    def all_of(self, kind: str) -> list[Tree]:
        """Return the resources of a kind."""
        return [one for one in self.resources if one["kind"] == kind]

    @property
    def service(self) -> Tree:
        """The spec of the RayService."""
        [found] = self.all_of("RayService")
        spec: Tree = found["spec"]
        return spec

    @property
    def serve_config(self) -> Tree:
        """The config that KubeRay submits to Serve."""
        config: Tree = yaml.safe_load(self.service["serveConfigV2"])
        return config

    @property
    def job(self) -> PodTemplate:
        """The pod that fills the volume of models."""
        [job] = self.all_of("Job")
        return PodTemplate(group="fetch-models", spec=job["spec"]["template"]["spec"])

    @property
    def stores(self) -> list[PodTemplate]:
        """The pods of stateful sets: Redis, where the folder brings it."""
        return [
            PodTemplate(
                group=one["metadata"]["name"],
                spec=one["spec"]["template"]["spec"],
                labels=one["spec"]["template"]["metadata"]["labels"],
            )
            for one in self.all_of("StatefulSet")
        ]

    def pods(self) -> list[PodTemplate]:
        """Return the pods of the Ray cluster, the head's first."""
        cluster = self.service["rayClusterConfig"]
        head = cluster["headGroupSpec"]
        found = [_ray_pod(HEAD, head, 1)]
        for group in cluster["workerGroupSpecs"]:
            found.append(_ray_pod(group["groupName"], group, group["replicas"]))
        return found

    def served(self) -> list[PodTemplate]:
        """Return the pods that the Service selects, if they are ready."""
        leaves_out = {HEAD} if self.service.get("excludeHeadPodFromServeSvc") else set()
        return [one for one in self.pods() if one.group not in leaves_out]

    def reachable(self) -> list[PodTemplate]:
        """Return the pods that clients reach: with a proxy, and no probe that keeps them out."""
        if self.serve_config.get("proxy_location") == "HeadOnly":
            return [one for one in self.served() if one.group == HEAD]
        return [one for one in self.served() if "readinessProbe" not in one.container]


def _ray_pod(name: str, group: Tree, replicas: int) -> PodTemplate:
    template = group["template"]
    limits = template["spec"]["containers"][0]["resources"]["limits"]
    start = {"num-cpus": str(int(limits["cpu"])), "memory": str(num_bytes(limits["memory"]))}
    if "nvidia.com/gpu" in limits:
        start["num-gpus"] = limits["nvidia.com/gpu"]
    return PodTemplate(
        group=name,
        spec=template["spec"],
        labels=template["metadata"].get("labels", {}),
        start=start | group["rayStartParams"],
        node_labels=group.get("labels", {}),
        replicas=replicas,
    )


def num_bytes(quantity: str) -> int:
    """Return the bytes of a quantity such as 16Gi."""
    for unit, size in _UNITS.items():
        if quantity.endswith(unit):
            return int(quantity.removesuffix(unit)) * size
    return int(quantity)
