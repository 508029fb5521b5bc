"""The rules of KubeRay and Kubernetes that decide if the manifests come up and stay up.

KubeRay's are of 1.7, by its documentation and sources. Workers wait for the head. Serve is given
the config once. The Service has the worker pods that are ready, and the head unless it is left out.
A pod that goes is made anew. An eviction needs budgets that allow it (`allows_eviction`).
"""

from __future__ import annotations

import subprocess
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import httpx

from deployments.config.applications import applications_of
from loadtest.rehearse.manifests import HEAD, Manifests, PodTemplate, Tree
from loadtest.rehearse.pods import Pod
from loadtest.rehearse.site import Site
from loadtest.rehearse.substitutions import object_store, substituted_config

_GCS_PORT, _DASHBOARD_PORT, _AGENT_PORT, _HTTP_PORT = 6379, 8265, 52365, 8000
_LOOK_S = 1.0  # between two rounds of the operator
_ASK_LIMIT_S = 10.0
_BEGIN_LIMIT_S = 60.0  # of a changed config, until Serve deploys it
_END_LIMIT_S = 30.0  # of pods that are killed
_GCS_RECONNECT_S = "600"  # of workers, where the head's state outlives it
_COMMON = {  # that KubeRay gives to pods of a RayService
    "RAY_GCS_SERVER_REQUEST_TIMEOUT_SECONDS": "5",
    "RAY_SERVE_KV_TIMEOUT_S": "5",
    "RAY_TIMEOUT_MS_TASK_WAIT_FOR_DEATH_INFO": "0",
    "RAY_USAGE_STATS_KUBERAY_IN_USE": "1",
}


@dataclass(kw_only=True)
class PodCluster:
    """A Ray cluster of pods that an operator's thread keeps as the manifests say.

    Args:
        manifests: of the RayService.
        site: where its pods are.
        number: of the release.
    """

    manifests: Manifests
    site: Site
    number: int = 1
    pods: list[Pod] = field(default_factory=list)
    num_submitted: int = 0
    changes: dict[str, Any] = field(default_factory=dict)  # of keys of the Serve config
    replicas: dict[str, set[str]] = field(default_factory=dict)  # by deployment, as Serve said last
    said: str = ""  # by Serve, last
    is_healthy: bool = False  # all applications and replicas, as it said
    _endpoints: list[str] = field(default_factory=list)
    _closing: threading.Event = field(default_factory=threading.Event)
    _thread: threading.Thread | None = None

    # --- what is asked of it ------------------------------------------------------------------

    def start(self) -> None:
        """Apply the manifests: Redis, the Job and the cluster at once, as `kubectl apply` does."""
        if self.number == 1:
            self.site.start(self.manifests)
        self._thread = threading.Thread(target=self._operate, daemon=True, name="operator")
        self._thread.start()

    def beside(self) -> PodCluster:
        """Start the cluster of the next release, with the same manifests, beside this one."""
        following = PodCluster(
            manifests=self.manifests,
            site=self.site,
            number=self.number + 1,
            changes=dict(self.changes),
        )
        following.start()
        return following

    def endpoints(self) -> list[str]:
        """Return the addresses that the Service sends to."""
        return list(self._endpoints)

    def of(self, group: str) -> list[Pod]:
        """Return the pods of a group that are not ending."""
        return [pod for pod in self.pods if pod.template.group == group and not pod.is_ending]

    def evict(self, pod: Pod) -> bool:
        """Evict a pod as a drain does; return whether the budgets allow it."""
        num_ready = sum(1 for each in self.of(pod.template.group) if self.is_ready(each))
        budgets = self.manifests.all_of("PodDisruptionBudget")
        if not all(allows_eviction(one, pod.template.labels, num_ready) for one in budgets):
            return False
        pod.terminate()
        return True

    @property
    def is_whole(self) -> bool:
        """True if all groups have their pods, Serve is content, and clients reach all they may."""
        for template in self.manifests.pods():
            num_up = sum(1 for pod in self.of(template.group) if pod.is_running and self.is_up(pod))
            if num_up < template.replicas:
                return False
        num_reachable = sum(one.replicas for one in self.manifests.reachable())
        return self.is_healthy and len(self._endpoints) >= num_reachable

    def state(self) -> str:
        """Say what Serve said last, and how the pods are."""
        pods = [f"{p.name}{'' if p.is_running else f' not running {p.problem}'}" for p in self.pods]
        return f"Serve says {self.said or 'nothing'}; pods: {', '.join(pods)}"

    def change(self, key: str, value: Any) -> None:
        """Apply the manifests with another value in the Serve config: KubeRay submits it anew.

        Serve looks whole as it was for a moment yet. So this waits until it has begun.

        Raises:
            ValueError: the config has no such place.
            TimeoutError: Serve did not begin within a limit.
        """
        if not applications_of(self.manifests.serve_config).change(key, value):
            raise ValueError(f"{key} is no key of args, and no option of a deployment")
        self.changes[key] = value
        before = self._deployed_at()
        wait_until(self._submit, _BEGIN_LIMIT_S)
        wait_until(lambda: self._deployed_at() not in ({}, before), _BEGIN_LIMIT_S)
        self.forget()

    def forget(self) -> None:
        """Drop what Serve said so far, so that only what it says from now on counts."""
        self.said, self.is_healthy = "", False

    def delete(self, grace_s: float) -> None:
        """Let all pods end within `grace_s`, as an operator deletes a cluster.

        Raises:
            TimeoutError: one has not ended then.
        """
        self._stop()
        for pod in self.pods:
            pod.terminate(grace_s)
        wait_until(lambda: all(pod.has_ended for pod in self.pods), grace_s + _END_LIMIT_S)

    def close(self) -> None:
        """End all pods at once."""
        self._stop()
        for pod in self.pods:
            pod.kill()

    def _stop(self) -> None:
        self._closing.set()
        if self._thread is not None:
            self._thread.join(30.0)

    # --- the operator -------------------------------------------------------------------------

    def _operate(self) -> None:
        while not self._closing.wait(_LOOK_S):
            try:
                self._reconcile()
                self._endpoints = self._find_endpoints()
                if self.num_submitted == 0 and self._is_head_up():
                    self._submit()
                self._look()
            except (OSError, ValueError, KeyError, subprocess.SubprocessError) as error:
                # It is told where somebody waits, and all is tried again.
                self.said = f"the operator failed: {error!r}"

    def _reconcile(self) -> None:
        for template in self.manifests.pods():
            missing = template.replicas - len(self.of(template.group))
            for _ in range(missing):
                if self.number == 1 or self._are_up:  # `pods beside others`
                    self._make(template)
            for pod in self.of(template.group):
                if pod.has_ended:
                    pod.kill()  # its network too; a new one comes with the next round

    @property
    def _are_up(self) -> bool:
        return all(self.is_up(pod) for pod in self.pods if not pod.is_ending)

    def _make(self, template: PodTemplate) -> None:
        environment = _COMMON | self._gcs(template)
        pod = self.site.make(template, self._start_words(template), environment)
        self.pods.append(pod)
        if template.group == HEAD:
            self.site.name(self._head_service, pod)

    @property
    def _head_service(self) -> str:
        return f"outrider-{self.number}-head-svc"

    def _gcs(self, template: PodTemplate) -> dict[str, str]:
        options = self.manifests.service["rayClusterConfig"].get("gcsFaultToleranceOptions")
        if options is None or not template.start:
            return {}
        if template.group != HEAD:
            return {"RAY_gcs_rpc_server_reconnect_timeout_s": _GCS_RECONNECT_S}
        secret = options["redisPassword"]["valueFrom"]["secretKeyRef"]
        return {
            "RAY_REDIS_ADDRESS": options["redisAddress"],
            "REDIS_PASSWORD": self.site.secret_values[f"{secret['name']}/{secret['key']}"],
            "RAY_external_storage_namespace": f"outrider-{self.number}",
        }

    def _start_words(self, template: PodTemplate) -> list[str]:
        options = dict(template.start) | object_store()
        options |= {"metrics-export-port": "8080", "dashboard-agent-listen-port": str(_AGENT_PORT)}
        if template.node_labels:
            pairs = template.node_labels.items()
            options["labels"] = ",".join(f"{name}={value}" for name, value in pairs)
        flags = " ".join(f"--{name}={value}" for name, value in options.items())
        own = "--node-ip-address=$(hostname -I | cut -d' ' -f1)"
        if template.group == HEAD:
            password = '${REDIS_PASSWORD:+--redis-password="$REDIS_PASSWORD"}'
            return ["bash", "-c", f"exec ray start --head {own} {password} {flags} --block"]
        # The operator puts an init container `wait-gcs-ready` in front; the head may move.
        address = f"{self._head_service}:{_GCS_PORT}"
        wait = f"until ray health-check --address {address} >/dev/null 2>&1; do sleep 1; done"
        return ["bash", "-c", f"{wait}; exec ray start --address={address} {own} {flags} --block"]

    # --- probes -------------------------------------------------------------------------------

    def is_ready(self, pod: Pod) -> bool:
        """Return whether the pod's probe is content: its own, or that of KubeRay's workers."""
        if pod.is_ending or not pod.is_running:
            return False
        probe: Tree = pod.template.container.get("readinessProbe", {})
        if "exec" in probe:
            return pod.run(probe["exec"]["command"], 5.0)
        return self.is_up(pod) and _says_ok(f"http://{pod.address}:{_HTTP_PORT}/-/healthz")

    def is_up(self, pod: Pod) -> bool:
        """Return whether the pod's raylet answers, as its liveness probe asks."""
        return _says_ok(f"http://{pod.address}:{_AGENT_PORT}/api/local_raylet_healthz")

    def _find_endpoints(self) -> list[str]:
        pods = [pod for template in self.manifests.served() for pod in self.of(template.group)]
        return [pod.address for pod in pods if self.is_ready(pod)]

    # --- Serve --------------------------------------------------------------------------------

    def _is_head_up(self) -> bool:
        return any(pod.is_running for pod in self.of(HEAD)) and self._ask("GET") is not None

    def _submit(self) -> bool:
        """Give the config to Serve; return whether it took it.

        It is not given again while it is the same, whatever becomes of it.
        """
        config = substituted_config(self.manifests.serve_config)
        for key, value in self.changes.items():
            applications_of(config).change(key, value)
        is_taken = self._ask("PUT", config) is not None
        self.num_submitted += is_taken
        return is_taken

    def _deployed_at(self) -> dict[str, float]:
        """Return when each application was deployed last; none if Serve does not answer."""
        apps = (self._ask("GET") or {}).get("applications", {})
        return {name: app["last_deployed_time_s"] for name, app in apps.items()}

    def _look(self) -> None:
        answer = self._ask("GET")
        if answer is None:
            return
        apps = answer.get("applications", {}).values()
        deployments = [one for app in apps for one in app["deployments"].values()]
        replicas = [replica for one in deployments for replica in one.get("replicas", ())]
        self.replicas = {
            one["name"]: {replica["replica_id"] for replica in one.get("replicas", ())}
            for one in deployments
        }
        states = {f"{one['name']}: {one['status']}" for one in deployments}
        self.said = "; ".join(f"{app['status']} {app.get('message', '')[:300]}" for app in apps)
        self.said += f" ({', '.join(sorted(states))})"
        # None of the replicas starts, moves or ends.
        self.is_healthy = (
            bool(apps)
            and all(app["status"] == "RUNNING" for app in apps)
            and all(one["status"] == "HEALTHY" for one in deployments)
            and all(replica["state"] == "RUNNING" for replica in replicas)
        )

    def _ask(self, method: str, config: Tree | None = None) -> Tree | None:
        heads = self.of(HEAD)
        if not heads:
            return None
        try:
            answer = httpx.request(
                method,
                f"http://{heads[0].address}:{_DASHBOARD_PORT}/api/serve/applications/",
                json=config,
                headers={"authorization": f"Bearer {self.site.token}"},
                timeout=_ASK_LIMIT_S,
            )
        except httpx.HTTPError:
            return None
        if answer.is_error:
            self.said = f"{answer.status_code} {answer.content[:300]!r}"
            return None
        return answer.json() if answer.content else {}


def allows_eviction(budget: Tree, labels: Mapping[str, str], num_ready: int) -> bool:
    """Return whether a budget allows a pod with such labels to go, of so many that are ready.

    KubeRay's pods have an owner without the subresource `scale`. Kubernetes cannot count how many
    there should be, and allows none to go unless `minAvailable` is a whole number.
    """
    wanted = budget["spec"]["selector"]["matchLabels"]
    if any(labels.get(name) != value for name, value in wanted.items()):
        return True
    least = budget["spec"].get("minAvailable")
    return isinstance(least, int) and num_ready - 1 >= least


def _says_ok(url: str) -> bool:
    try:
        return b"success" in httpx.get(url, timeout=2.0).raise_for_status().content
    except httpx.HTTPError:
        return False


def wait_until(happened: Callable[[], bool], limit_s: float, step_s: float = 0.5) -> None:
    """Wait until `happened()`.

    Raises:
        TimeoutError: it did not within `limit_s`.
    """
    began_s = time.monotonic()
    while not happened():
        if time.monotonic() - began_s > limit_s:
            raise TimeoutError(f"not within {limit_s:g} s")
        time.sleep(step_s)
