"""Brings the manifests up on this machine as they are, and plays what happens to a cluster.

Each pod is a set of namespaces, with its own files, processes and address; making them needs root.
`loadtest/rehearse` has KubeRay's rules, and the list of what is replaced.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from deployments.config.keys import assignments
from loadtest.client.cases import constrained_cases, free_cases
from loadtest.client.streams import FaultLoad, Load
from loadtest.rehearse.faults import faults_of
from loadtest.rehearse.gateway import Gateway
from loadtest.rehearse.kuberay import PodCluster, wait_until
from loadtest.rehearse.manifests import HEAD, Manifests
from loadtest.rehearse.site import Site
from loadtest.rehearse.substitutions import DELAY_S, GRACE_S, SUBSTITUTIONS
from loadtest.report.machine import ROOT
from loadtest.trial.scene import Event, Scene
from loadtest.trial.trial import Place, Trial

_KEY = "a-key-of-the-rehearsal"
_KEPT = ("PATH", "HOME", "LANG", "HF_HUB_OFFLINE", "XDG_CACHE_HOME", "NUMBA_CPU_NAME")
_TOOLS = ("kubectl", "redis-server", "ip", "setpriv", "unshare", "nsenter")
_INSTALL_LIMIT_S, _SETTLE_LIMIT_S = 900.0, 600.0
_AFTER_S = 10.0  # of load once all is whole again
DRAIN, LOSE, KEY, RELEASE = "drain", "lose", "key", "release"


def obstacles() -> list[str]:
    """Return what a rehearsal lacks on this machine."""
    missing = [f"{name} is not installed" for name in _TOOLS if shutil.which(name) is None]
    return missing if os.geteuid() == 0 else ["this is not root", *missing]


@dataclass(frozen=True, kw_only=True)
class Rehearsed(Place):
    """The pods of the folder of manifests that the terms name."""

    @contextlib.contextmanager
    def opened(self, scene: Scene, path: Path, is_clean: Callable[[], bool]) -> Iterator[None]:
        """See `Place`; the first install is over then, and its time is noted.

        Raises:
            ValueError: something is not there that it needs, the terms name no such event, or the
                manifests have an outage in them.
        """
        if lacking := obstacles():
            raise ValueError(f"a rehearsal cannot be here: {', '.join(lacking)}")
        manifests = Manifests.of(ROOT / scene.terms.folder)
        _check_events(scene.terms.events, [pod.group for pod in manifests.pods()])
        if found := faults_of(manifests):
            raise ValueError(f"{scene.terms.folder}: " + "; ".join(found))
        scene.result.extra["replaced"] = SUBSTITUTIONS
        folder = Path(tempfile.mkdtemp(prefix="or-rehearse-"))
        (folder / "secrets").mkdir()
        key = hashlib.sha256(_KEY.encode()).hexdigest()
        (folder / "secrets" / "keys").write_text(f"tests {key}\n", encoding="utf-8")
        site = Site(
            folder=folder,
            environment={name: os.environ[name] for name in _KEPT if name in os.environ},
            fetch_s=scene.terms.fetch_s,
        )
        scene.pods = PodCluster(manifests=manifests, site=site)
        gateway = Gateway(lambda: scene.pods.endpoints())
        scene.base_url = gateway.url
        print(f"the pods' logs are in {folder}", flush=True)
        try:
            began_s = time.monotonic()
            scene.pods.start()
            await_whole(scene.pods, _INSTALL_LIMIT_S)
            figures = {
                "whole_s": time.monotonic() - began_s,
                "endpoints": float(len(scene.pods.endpoints())),
            }
            scene.note("manifests", "first install", figures)
            print(f"first install: {figures}", flush=True)
            yield
        finally:
            scene.pods.close()
            site.close()
            gateway.close()
            if is_clean():
                shutil.rmtree(folder, ignore_errors=True)


def await_whole(pods: PodCluster, limit_s: float) -> None:
    """Wait until all pods run, Serve says all is well, and each router pod is reached.

    Raises:
        TimeoutError: they do not within `limit_s`; with what Serve said, and the pods.
    """
    try:
        wait_until(lambda: pods.is_whole, limit_s)
    except TimeoutError as error:
        raise TimeoutError(f"{error}: {pods.state()}") from None


@dataclass(frozen=True, kw_only=True)
class PodGoes(Event):
    """A pod goes: drained with its node, or lost with it. Over when all is whole again.

    A drained pod may live on for its grace period, as long as clients keep connections to it.

    Attributes:
        group: of the pod.
        how: DRAIN or LOSE.
    """

    group: str
    how: str
    workload: str = "manifests"

    def happen(self, scene: Scene) -> Mapping[str, float]:
        """See `Event`."""
        began_s = time.monotonic()
        pod = scene.pods.of(self.group)[0]
        if self.how == LOSE:
            pod.kill()
        elif not scene.pods.evict(pod):
            scene.problems.append("its disruption budget allows no eviction")
            return {}
        scene.pods.forget()
        return await_settled(scene, began_s)


@dataclass(frozen=True, kw_only=True)
class KeyChanges(Event):
    """A key of the Serve config changes, as `kubectl apply` of a changed file does.

    Attributes:
        key: as on the command line of `python -m deployments.config`.
        value: the new one.
    """

    key: str
    value: Any
    workload: str = "manifests"

    def happen(self, scene: Scene) -> Mapping[str, float]:
        """See `Event`; with the number of replaced replicas of each deployment."""
        before = scene.pods.replicas
        began_s = time.monotonic()
        scene.pods.forget()
        scene.pods.change(self.key, self.value)
        figures = await_settled(scene, began_s)
        gone = {
            name: len(ids - scene.pods.replicas.get(name, set())) for name, ids in before.items()
        }
        return figures | {f"replaced {name}": float(num) for name, num in gone.items()}


@dataclass(frozen=True, kw_only=True)
class Release(Event):
    """Another release is applied: a cluster beside the first, the switch, and the first one's end.

    The Service sends new connections to the second cluster when that is whole. The first one is
    deleted after a while (`delay`). Its routers serve on while clients keep connections, and those
    that are left are cut.
    """

    workload: str = "manifests"

    def happen(self, scene: Scene) -> Mapping[str, float]:
        """See `Event`; `whole_s` is the time until the switch."""
        began_s = time.monotonic()
        first, following = scene.pods, scene.pods.beside()
        try:
            await_whole(following, _INSTALL_LIMIT_S)
        except TimeoutError as error:
            scene.problems.append(str(error))
            following.close()
            return {}
        whole_s = time.monotonic() - began_s
        scene.pods = following
        time.sleep(DELAY_S)
        try:
            first.delete(GRACE_S)
        except TimeoutError as error:
            scene.problems.append(f"the first cluster: {error}")
        first.close()
        time.sleep(_AFTER_S)
        return {"whole_s": whole_s}


def await_settled(scene: Scene, began_s: float) -> dict[str, float]:
    """Wait until all is whole after an event; what is not by the limit is a problem."""
    try:
        await_whole(scene.pods, _SETTLE_LIMIT_S)
    except TimeoutError as error:
        scene.problems.append(str(error))
    whole_s = time.monotonic() - began_s
    time.sleep(_AFTER_S)
    return {"whole_s": whole_s}


def _check_events(words: Sequence[str], groups: Sequence[str]) -> None:
    for word in words:
        how, _, what = word.partition(":")
        if (how == KEY and "=" in what) or word == RELEASE:
            continue
        if how not in (DRAIN, LOSE) or what not in groups:
            known = ", ".join(groups)
            raise ValueError(
                f"events: must be {RELEASE}, {KEY}:NAME=VALUE, {DRAIN}:GROUP or {LOSE}:GROUP with "
                f"a group of {known}, got {word!r}"
            )


def _events(scene: Scene) -> Iterator[Event]:
    for word in scene.terms.events:
        how, _, what = word.partition(":")
        if how == KEY:
            [(key, value)] = assignments([what]).items()
            yield KeyChanges(way=f"{KEY} {key}", key=key, value=value)
        elif word == RELEASE:
            yield Release(way=RELEASE)
        else:
            yield PodGoes(way=f"{how} {what}", group=what, how=how)


def _streams(scene: Scene) -> Sequence[Load]:
    number = scene.terms.streams
    cases = [*free_cases(number), *constrained_cases(number)]
    return [FaultLoad(scene.base_url, cases, api_key=_KEY)]


REHEARSE = Trial(
    question="do the manifests come up, and does any stream notice when a pod goes",
    terms={
        "folder": "k8s/base",  # of a kustomization, from the repository's root
        "events": (
            f"{KEY}:router.default_max_tokens=500",
            *(f"{DRAIN}:{group}" for group in ("router", "draft", "target")),
            *(f"{LOSE}:{group}" for group in (HEAD, "draft", "target", "router")),
        ),
        "streams": 3,  # free ones, and as many constrained
        "fetch_s": 30.0,  # that the models take to come
    },
    quick={
        "events": (f"{DRAIN}:router",),
        "streams": 2,
        "fetch_s": 4.0,
    },
    place=Rehearsed(is_watched=False),
    loads=_streams,
    events=_events,
    steady_s=120.0,
)
