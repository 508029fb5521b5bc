"""Several Ray nodes on this machine, to which configs are deployed as an operator does it.

Each node is a raylet of its own with labels, CPUs and GPUs in name only. Ray counts them, but no
process computes on them. Everything is private (own folder, own ports) and ends with the block. A
config meant for real nodes is fitted by `on_one_machine`.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import httpx
import yaml

from loadtest.report.machine import ROOT
from loadtest.service.node import RayNode
from loadtest.service.served import (
    Config,
    ended_in_order,
    free_port,
    private_environment,
    section,
)

ROLE = "outrider/role"
DEPLOY_TIMEOUT_S = 60.0
_HEALTH_TIMEOUT_S = 15.0
DEMO_NAME = "outrider-demo"
_DEMO = ROOT / "models" / "demo"


@dataclass(frozen=True)
class Role:
    """The resources of a node of one label (none where `name` is empty), as Ray counts them."""

    name: str
    num_cpus: int
    num_gpus: int = 0


# The roles are the worker groups of k8s/base/rayservice.yaml, with fewer CPUs than those have.
ROUTER = Role("router", num_cpus=16)
DRAFT = Role("draft", num_cpus=4, num_gpus=1)
TARGET = Role("target", num_cpus=12, num_gpus=4)
_HEAD = Role("", num_cpus=0)


class PrivateCluster:
    """A running cluster; make one with `private_cluster`."""

    def __init__(self, folder: Path, head: Role, *, has_dashboard: bool) -> None:
        self.folder = folder
        self._port = free_port()
        self._gcs_port = free_port()
        self._dashboard_port = free_port()
        self._nodes: list[tuple[Role, RayNode]] = []
        self._num_started = 0
        options: dict[str, object] = {
            "head": None,
            "port": self._gcs_port,
            "ray-client-server-port": free_port(),  # else it shares another Ray's
            "include-dashboard": has_dashboard,
        }
        if has_dashboard:
            options |= {"dashboard-host": "127.0.0.1", "dashboard-port": self._dashboard_port}
        self._start(head, options)

    @property
    def base_url(self) -> str:
        """The URL at which deployed configs are served."""
        return f"http://127.0.0.1:{self._port}"

    def gcs_address(self) -> str:
        """Return the address for `ray.init`."""
        return f"127.0.0.1:{self._gcs_port}"

    def add(self, role: Role) -> RayNode:
        """Add a node of this role, alive; give it to `remove`."""
        return self._start(role, {"address": self.gcs_address()})

    def remove(self, node: RayNode) -> None:
        """Kill the node and all that runs on it, as a machine that loses its power."""
        self._nodes = [one for one in self._nodes if one[1] is not node]
        node.close()

    def of(self, role: Role) -> list[RayNode]:
        """Return the living nodes of a role."""
        return [node for its_role, node in self._nodes if its_role == role]

    def _start(self, role: Role, options: Mapping[str, object]) -> RayNode:
        own: dict[str, object] = {
            "num-cpus": role.num_cpus,
            "num-gpus": role.num_gpus,
            "dashboard-agent-listen-port": 0,
        }
        if role.name:
            own["labels"] = f"{ROLE}={role.name}"
        node = RayNode({**own, **options}, self.folder / f"node-{self._num_started}.log")
        self._num_started += 1
        self._nodes.append((role, node))
        return node

    def deploy(self, config: Config) -> None:
        """Deploy a config as `serve deploy` does, at this cluster's own port.

        Returns before it is in force.

        Raises:
            RuntimeError: it was refused, or nothing was said within `DEPLOY_TIMEOUT_S`.
        """
        config["http_options"] |= {"host": "127.0.0.1", "port": self._port}
        url = f"http://127.0.0.1:{self._dashboard_port}/api/serve/applications/"
        try:
            answer = httpx.put(url, json=config, timeout=DEPLOY_TIMEOUT_S)
        except httpx.HTTPError as error:
            raise RuntimeError(f"PUT {url}, {DEPLOY_TIMEOUT_S:g} s: {error!r}") from error
        if answer.status_code != httpx.codes.OK:
            raise RuntimeError(f"PUT {url}: {answer.status_code} {answer.text[-4000:]}")

    def wait_healthy(self, limit_s: float) -> None:
        """Wait until what is deployed answers.

        Raises:
            TimeoutError: it does not after `limit_s`; with what it said last.
        """
        deadline = time.monotonic() + limit_s
        while True:
            try:
                answer = httpx.get(f"{self.base_url}/health", timeout=_HEALTH_TIMEOUT_S)
            except httpx.HTTPError as error:
                said = repr(error)
            else:
                if answer.status_code == httpx.codes.OK:
                    return
                said = answer.text
            if time.monotonic() > deadline:
                raise TimeoutError(f"not healthy after {limit_s:g} s: {said}")
            time.sleep(0.5)

    def close(self) -> None:
        """End every node, the head last, also where one does not end."""
        with contextlib.ExitStack() as stack:
            for _, node in self._nodes:
                stack.callback(node.close)
            self._nodes.clear()


@contextlib.contextmanager
def private_cluster(
    head: Role = _HEAD,
    *,
    also_importable: Iterable[Path] = (),
    has_dashboard: bool = True,
    environment: Mapping[str, str] | None = None,
) -> Iterator[PrivateCluster]:
    """Yield a head node until the block ends, then remove all of it.

    Args:
        head: what the head has; by default it runs nothing.
        also_importable: folders of modules for its processes.
        has_dashboard: without one nothing can be deployed by `PrivateCluster.deploy`.
        environment: further variables of its processes.
    """
    folder = Path(tempfile.mkdtemp(prefix="or-"))  # short: Ray's sockets live below it
    given = os.environ.get("PYTHONPATH", "")  # an engine that is installed beside the others
    path = os.pathsep.join(filter(None, [*map(str, (ROOT, *also_importable)), given]))
    try:
        own = {**(environment or {}), **private_environment(folder), "PYTHONPATH": path}
        with ended_in_order(), _environment(own):
            cluster = PrivateCluster(folder, head, has_dashboard=has_dashboard)
            try:
                yield cluster
            finally:
                cluster.close()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextlib.contextmanager
def _environment(values: dict[str, str]) -> Iterator[None]:
    """Environment variables until the block ends: Ray's daemons take over those of this process."""
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


# --- configs ------------------------------------------------------------------------------------


def on_one_machine(path: Path, *, api_keys_file: Path | None = None) -> Config:
    """Return the config of a file as `fit_one_machine` changes it."""
    config: Config = yaml.safe_load(path.read_text(encoding="utf-8"))
    fit_one_machine(config, api_keys_file=api_keys_file)
    return config


def fit_one_machine(config: Config, *, api_keys_file: Path | None = None) -> None:
    """Change a config for real nodes and GPUs as little as possible, to run on nodes in name.

    The demo pair replaces its models, in float32, because only there 4 ranks give the text of 1. It
    runs on CPUs, with a context and a KV cache that fit them, and has the demo's name. There is one
    HTTP proxy, because all nodes share one port, and as many replicas as autoscaling begins with.
    Placement stays as it is, but that a node may have several replicas of a kind.
    """
    config["proxy_location"] = "HeadOnly"
    for application in config["applications"]:
        args = application["args"]
        for name in {"target", "draft"} & args.keys():
            args[name] |= {
                "model_path": str(_DEMO / name),
                "revision": None,
                "device": "cpu",
                "dtype": "float32",
                "max_model_len": 2048,
                "kv_cache_tokens": 32768,
            }
        if "model_name" in args:
            args["model_name"] = DEMO_NAME
        for deployment in application["deployments"]:
            deployment.pop("max_replicas_per_node", None)
            autoscaling = deployment.pop("autoscaling_config", None)
            if autoscaling is not None:
                deployment["num_replicas"] = autoscaling.get("min_replicas", 1)
    section(config, "router").update(
        model_name=DEMO_NAME,
        tokenizer_path=str(_DEMO / "target"),
        api_keys_file="" if api_keys_file is None else str(api_keys_file),
    )
