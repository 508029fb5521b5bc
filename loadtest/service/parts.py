"""A served config seen from outside: which process plays which part, and what it still holds.

Parts are found through Ray's actor table (a rank's owner is its coordinator). So the service need
not know that it is watched. One of these per Python process: Ray knows one cluster at a time.
"""

from __future__ import annotations

import contextlib
import logging
import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import psutil
import ray
from ray import serve
from ray.exceptions import RayError
from ray.serve.context import _get_global_client, _set_global_client
from ray.serve.exceptions import RayServeException
from ray.serve.handle import DeploymentHandle

from deployments.serve.spare import POLICY

_WITHOUT_BOOKS = ("Router", "Monitor")

EDGE_KINDS = ("proxy", "router")  # clients are connected to them
KINDS = (  # that may be killed
    "target-coordinator",
    "target-rank",
    "draft-coordinator",
    "draft-rank",
    "constraint-replica",
    "constraint-child",
    "controller",
    *EDGE_KINDS,
)

_ACTOR_KINDS = {
    "ServeReplica:Target": "target-coordinator",
    "ServeReplica:Draft": "draft-coordinator",
    "ServeReplica:Constraint": "constraint-replica",
    "ServeReplica:Router": "router",
    "ServeController": "controller",
    "ProxyActor": "proxy",
}
_REPLICA_OF = {"target-rank": "target-coordinator", "constraint-child": "constraint-replica"}
_CONSTRAINT_CHILDREN = frozenset({"deployments.constraint.child", "deployments.constraint.canary"})
_HELD = ("num_sessions", "num_leases", "num_used_blocks", "queue_length")
_STATS_TIMEOUT_S = 20.0
_WHOLE_LIMIT_S = 300.0
_POLL_S = 0.2


class Watched(Protocol):
    """A service on this machine that can be looked into: `Served`, `PrivateCluster`."""

    @property
    def base_url(self) -> str:
        """The URL at which it serves HTTP."""

    @property
    def folder(self) -> Path:
        """The folder of its files; all its processes have this as their RAY_TMPDIR."""

    def gcs_address(self) -> str:
        """Return the address of its Ray."""


@dataclass(frozen=True)
class Part:
    """A living actor that plays one of `KINDS`, and where."""

    kind: str
    pid: int
    node_id: str
    owner_pid: int = 0  # of a rank its coordinator's
    began_ms: int = 0  # when it became an actor: its process may be older


def is_alive(process: psutil.Process) -> bool:
    """Return whether it runs or could be woken; a zombie has ended."""
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.Error:
        return False


def is_stopped(process: psutil.Process) -> bool:
    """Return whether it is alive and stopped by a signal."""
    try:
        return process.status() == psutil.STATUS_STOPPED
    except psutil.Error:
        return False


def family(folder: Path) -> list[psutil.Process]:
    """Return every living process that was started for the service with this private folder."""
    marker = f"RAY_TMPDIR={folder}".encode()
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(OSError):
            environment = Path(f"/proc/{process.pid}/environ").read_bytes()
            if marker in environment.split(b"\0") and is_alive(process):
                found.append(process)
    return found


def wait_gone(folder: Path, limit_s: float) -> list[psutil.Process]:
    """Wait until nothing of `family` lives any more; what still does after `limit_s`."""
    deadline = time.monotonic() + limit_s
    while (left := family(folder)) and time.monotonic() < deadline:
        time.sleep(_POLL_S)
    return left


def leave_ray() -> None:
    """Disconnect from Ray, and have Serve forget the controller it knew there.

    Serve tells controllers apart by the number of this process's connection. Another cluster may
    give the same number, and Serve would then speak to a controller that is gone.
    """
    ray.shutdown()
    _set_global_client(None)


class FaultService:
    """Parts, state and books of a running service. Use as a context manager.

    Args:
        served: the service.
    """

    def __init__(self, served: Watched) -> None:
        self._served = served
        self._handles: dict[str, DeploymentHandle[Any]] = {}
        self._expected: dict[str, int] = {}
        self._spared: list[tuple[str, str]] = []  # applications and deployments with a spare

    @property
    def base_url(self) -> str:
        """The URL at which it serves HTTP."""
        return self._served.base_url

    def __enter__(self) -> FaultService:
        ray.init(
            address=self._served.gcs_address(),
            log_to_driver=False,
            logging_level=logging.ERROR,
            namespace="faults",
        )
        try:
            self.wait_deployed(_WHOLE_LIMIT_S)
        except BaseException:
            self._leave()  # or this process ends with that Ray
            raise
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._leave()

    def _leave(self) -> None:
        # A handle to what scales reports from a thread of its own, which would join the next Ray.
        for handle in self._handles.values():
            handle.shutdown()
        leave_ray()

    def parts(self) -> dict[str, list[psutil.Process]]:
        """Living processes by kind (`KINDS`)."""
        found: dict[str, list[psutil.Process]] = {kind: [] for kind in KINDS}
        for part in actors():
            _append(found[part.kind], part.pid)
        for replica in list(found["constraint-replica"]):
            with contextlib.suppress(psutil.Error):
                for child in replica.children():
                    if _CONSTRAINT_CHILDREN.intersection(child.cmdline()):
                        _append(found["constraint-child"], child.pid)
        return found

    def victims(self, kind: str) -> list[psutil.Process]:
        """Return the processes of a kind that may be struck: not a spare nor what belongs to it.

        Its loss would be noticed by nobody.
        """
        parts, replica = self.parts(), _REPLICA_OF.get(kind, kind)
        if replica not in {_ACTOR_KINDS[f"ServeReplica:{name}"] for _, name in self._spared}:
            return parts[kind]
        found = {part.pid: part for part in actors()}
        oldest = min((one.began_ms, one.pid) for one in found.values() if one.kind == replica)[1]
        return [
            process
            for process in parts[kind]
            if oldest in (process.pid, _parent(process))
            or (process.pid in found and found[process.pid].owner_pid == oldest)
        ]

    def missing(self) -> str:
        """Return the difference from the start, for people; "" if the service is whole.

        Serve is asked last, because a stopped controller would not answer.
        """
        parts = self.parts()
        for kind, wanted in self._expected.items():
            if len(parts[kind]) != wanted:
                return f"{len(parts[kind])} of {wanted} {kind} processes"
            for process in parts[kind]:
                if is_stopped(process):
                    return f"{kind} {process.pid} is stopped"
        return unhealthy()

    def wait_deployed(self, limit_s: float) -> None:
        """Wait until the last config is in force; what runs then counts as whole, a spare included.

        Applications that are new get handles.

        Raises:
            TimeoutError: it has not after `limit_s`.
        """
        _wait(unhealthy, limit_s)
        self._spared = spared()
        _wait(lambda: _without_spare(self._spared) or unhealthy(), limit_s)
        for application, status in serve.status().applications.items():
            for name in status.deployments:
                if name not in (*_WITHOUT_BOOKS, *self._handles):
                    self._handles[name] = serve.get_deployment_handle(name, application)
        self._expected = {kind: len(found) for kind, found in self.parts().items()}

    def stats(self) -> dict[str, list[dict[str, float]]]:
        """Return each replica's own counters, by deployment."""
        return {
            name: list(handle.broadcast("stats").results(timeout_s=_STATS_TIMEOUT_S))
            for name, handle in self._handles.items()
        }

    def held(self) -> list[str]:
        """Sessions, leases and KV blocks that are not free, one line each."""
        lines = []
        try:
            stats_by_name = self.stats()
        except (RayError, RayServeException, TimeoutError) as error:
            return [f"no counters to be had: {error}"]  # a fresh handle knows no replicas yet
        for name, replicas in stats_by_name.items():
            for index, stats in enumerate(replicas):
                for key in _HELD:
                    if stats.get(key):
                        lines.append(f"{name} {index}: {key} is {stats[key]:g}")
        return lines

    def wait_freed(self, limit_s: float) -> list[str]:
        """Wait until nothing is held any more; what still is after `limit_s`."""
        deadline = time.monotonic() + limit_s
        while (held := self.held()) and time.monotonic() < deadline:
            time.sleep(_POLL_S)
        return held

    def orphans(self) -> list[psutil.Process]:
        """Constraint children whose replica is gone: Ray does not know them, so nobody ends them
        but they themselves."""
        known = set(self.parts()["constraint-child"])
        return [
            process
            for process in family(self._served.folder)
            if process not in known and _CONSTRAINT_CHILDREN.intersection(_command(process))
        ]

    def check_kinds(self, kinds: Sequence[str]) -> None:
        """Check that there is a process of each kind.

        Raises:
            ValueError: there is none.
        """
        parts = self.parts()
        for kind in kinds:
            if not parts[kind]:
                raise ValueError(f"--set: kinds: this config has no {kind} process")


def unhealthy() -> str:
    """Return Serve's unfinished or failed work, for people; "" if all replicas run."""
    try:
        applications = serve.status().applications
    except RayError as error:
        return f"the controller does not answer: {error}"
    for application, status in applications.items():
        for name, deployment in status.deployments.items():
            states = {str(state): count for state, count in deployment.replica_states.items()}
            if deployment.status != "HEALTHY" or set(states) != {"RUNNING"}:
                return f"{name} is {deployment.status}: {states} {deployment.message}"
        if status.status != "RUNNING":
            return f"the application {application} is {status.status}: {status.message}"
    return ""


def spared() -> list[tuple[str, str]]:
    """Return application and deployment of all that have a spare or will. Needs `ray.init`."""
    client: Any = _get_global_client()
    return [
        (application, name)
        for application, details in client.get_serve_details()["applications"].items()
        for name, deployment in details["deployments"].items()
        if POLICY in str(deployment["deployment_config"].get("autoscaling_config"))
    ]


def _without_spare(deployments: Sequence[tuple[str, str]]) -> str:
    """Return a deployment whose spare is still to come, for people; "" if all are there."""
    applications = serve.status().applications
    for application, name in deployments:
        states = applications[application].deployments[name].replica_states
        if sum(states.values()) < 2:
            return f"{name} has no spare yet"
    return ""


def actors() -> list[Part]:
    """Return the living actors that have a part. Needs `ray.init`."""
    import ray._private.state as state  # the public state API needs the dashboard

    table = [actor for actor in state.actors().values() if actor["State"] == "ALIVE"]
    kinds = {}
    pids = {_address(actor["Address"]): int(actor["Pid"]) for actor in table}
    for actor in table:
        kind = _ACTOR_KINDS.get(re.sub(":.*:", ":", actor["ActorClassName"]))  # any application
        if kind is not None:
            kinds[_address(actor["Address"])] = kind
    found = []
    for actor in table:
        kind = kinds.get(_address(actor["Address"]), "")
        engine, _, part = kinds.get(_address(actor["OwnerAddress"]), "").partition("-")
        if not kind and part == "coordinator":
            kind = f"{engine}-rank"
        if kind:
            owner_pid = pids.get(_address(actor["OwnerAddress"]), 0)
            place, began_ms = actor["Address"]["NodeID"], int(actor["StartTime"])
            found.append(Part(kind, actor["Pid"], place, owner_pid, began_ms))
    return found


def _address(address: dict[str, Any]) -> tuple[str, int]:
    return address["IPAddress"], address["Port"]


def _append(processes: list[psutil.Process], pid: int) -> None:
    with contextlib.suppress(psutil.Error):
        process = psutil.Process(pid)
        if is_alive(process):
            processes.append(process)


def _parent(process: psutil.Process) -> int:
    with contextlib.suppress(psutil.Error):
        return process.ppid()
    return 0


def _command(process: psutil.Process) -> list[str]:
    with contextlib.suppress(psutil.Error):
        return process.cmdline()
    return []


def _wait(complaint: Callable[[], str], limit_s: float) -> None:
    deadline = time.monotonic() + limit_s
    while missing := complaint():
        if time.monotonic() > deadline:
            raise TimeoutError(f"after {limit_s:g} s: {missing}")
        time.sleep(_POLL_S)
