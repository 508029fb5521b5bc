"""Pods on this machine: each has processes, addresses and files of its own, and ends as a whole.

A pod is a set of namespaces: of processes, mounts and the network. Its root is the machine's under
an overlay, so that nothing it writes stays. Volumes are folders at the paths that the manifests
name. Its address is on a bridge that all pods and this process share. Making one needs root.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import signal
import subprocess
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from loadtest.rehearse.manifests import PodTemplate, Tree
from loadtest.report.machine import ROOT

_ENTER = ("ip", "netns", "exec")
# A pod ends with this process, however that ends.
_APART = (
    *("setpriv", "--pdeathsig", "KILL"),
    *("unshare", "--mount", "--pid", "--fork", "--kill-child"),
)
_IMAGE_FOLDER = "/home/ray/outrider"  # where the Dockerfile copies this repository to
_SETUP_LIMIT_S = 20.0
_END_LIMIT_S = 20.0


class Network:
    """The bridge of the pods, a /24 network; `close` removes it."""

    def __init__(self, name: str = "or0", prefix: str = "10.77.0") -> None:
        self.name, self._prefix = name, prefix
        self._last = 1
        self._links: dict[str, str] = {}  # by namespace
        with contextlib.suppress(subprocess.CalledProcessError):
            _ip("link", "del", name)  # of a rehearsal that was killed
        _ip("link", "add", name, "type", "bridge")
        _ip("addr", "add", f"{prefix}.1/24", "dev", name)
        _ip("link", "set", name, "up")

    def join(self, namespace: str) -> str:
        """Make a network namespace with an address on the bridge; return the address."""
        self._last += 1
        address, link = f"{self._prefix}.{self._last}", f"{self.name}p{self._last}"
        self._links[namespace] = link
        for stale in (("netns", "del", namespace), ("link", "del", link)):
            with contextlib.suppress(subprocess.CalledProcessError):  # of one that was killed
                _ip(*stale)
        _ip("netns", "add", namespace)
        _ip("link", "add", link, *["type", "veth", "peer", "eth0", "netns"], namespace)
        _ip("link", "set", link, "master", self.name, "up")
        for words in (
            ("addr", "add", f"{address}/24", "dev", "eth0"),
            ("link", "set", "eth0", "up"),
            ("link", "set", "lo", "up"),
            ("route", "add", "default", "via", f"{self._prefix}.1"),
        ):
            _ip("-n", namespace, *words)
        return address

    def leave(self, namespace: str) -> None:
        """Remove a namespace and its end on the bridge; again, nothing happens."""
        link = self._links.pop(namespace, None)
        if link is None:
            return
        for gone in (("link", "del", link), ("netns", "del", namespace)):
            with contextlib.suppress(subprocess.CalledProcessError):
                _ip(*gone)

    def close(self) -> None:
        """Remove the bridge."""
        with contextlib.suppress(subprocess.CalledProcessError):
            _ip("link", "del", self.name)


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True, timeout=_SETUP_LIMIT_S)


@dataclass(kw_only=True)
class Pod:
    """A running pod.

    Attributes:
        name: unique among all.
        template: whose pod it is.
        address: on the bridge.
        folder: its logs.
        is_ending: it was told to end, so no service sends to it any more.
    """

    name: str
    template: PodTemplate
    network: Network
    folder: Path
    volumes: Mapping[str, Path]
    hosts: Path
    environment: Mapping[str, str]
    address: str = ""
    is_ending: bool = False
    is_running: bool = False  # its main container has begun
    problem: str = ""
    _process: subprocess.Popen[bytes] | None = None
    _ended: threading.Event = field(default_factory=threading.Event)

    def start(self, main: Sequence[str]) -> None:
        """Make the pod; init containers run first, in a thread, then `main`."""
        self.folder.mkdir(parents=True, exist_ok=True)
        self.address = self.network.join(self.name)
        threading.Thread(target=self._run, args=(list(main),), name=self.name, daemon=True).start()

    def _run(self, main: Sequence[str]) -> None:
        for container in self.template.spec.get("initContainers", ()):
            words = [*container["command"], *container.get("args", ())]
            status = self._begin(container, words).wait()
            if self.is_ending or status != 0:
                self.problem = f"{container['name']} ended with {status}"
                self._ended.set()
                return
        process = self._begin(self.template.container, main)
        self.is_running = True
        process.wait()
        self.is_running = False
        self._ended.set()

    def _begin(self, container: Tree, words: Sequence[str]) -> subprocess.Popen[bytes]:
        """Run a container's words within the pod's namespaces."""
        script = self.folder / f"{container['name']}.sh"
        script.write_text(self._script(container, words), encoding="utf-8")
        log: IO[bytes] = (self.folder / f"{container['name']}.log").open("ab")
        with log:
            self._process = subprocess.Popen(
                [*_ENTER, self.name, *_APART, "bash", str(script)],
                stdout=log,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
                start_new_session=True,
                env={**self.environment, **_values(container, self.environment)},
            )
        return self._process

    def _script(self, container: Tree, words: Sequence[str]) -> str:
        root, rw = self.folder / "root", self.folder / "rw"
        lines = [
            "set -e",
            "mount --make-rprivate /",
            f"mkdir -p {root} {rw}",
            f"mount -t tmpfs none {rw}",
            f"mkdir {rw}/upper {rw}/work",
            f"mount -t overlay overlay -o lowerdir=/,upperdir={rw}/upper,workdir={rw}/work {root}",
            f"mount --rbind /dev {root}/dev",
            f"mount --rbind /sys {root}/sys",
            f"mount -t proc proc {root}/proc",
            f"mount -t tmpfs -o size=512m none {root}/dev/shm",
            f"mount --bind {self.hosts} {root}/etc/hosts",
            f"mkdir -p {root}{_IMAGE_FOLDER}",
            f"mount --bind {ROOT} {root}{_IMAGE_FOLDER}",
        ]
        for mount in container.get("volumeMounts", ()):
            folder = self.volumes.get(mount["name"])
            if folder is None:
                continue
            path = f"{root}{mount['mountPath']}"
            lines += [f"mkdir -p {path}", f"mount --bind {folder} {path}"]
            if mount.get("readOnly"):
                lines.append(f"mount -o remount,bind,ro {path}")
        lines += [f"cd {root}", f"exec chroot {root} /bin/bash -c {shlex.quote(_inner(words))}"]
        return "\n".join(lines) + "\n"

    # --- its end ------------------------------------------------------------------------------

    @property
    def has_ended(self) -> bool:
        """True if nothing of it runs any more."""
        return self._ended.is_set()

    def run(self, words: Sequence[str], limit_s: float) -> bool:
        """Run words in the pod, as `kubectl exec` does; return whether they ended with 0."""
        pid = self._first_process()
        if pid is None:
            return False
        entered = ["nsenter", "-t", str(pid), "-m", "-p", "-n", "-r", "-w", *words]
        with contextlib.suppress(subprocess.TimeoutExpired):
            return subprocess.run(entered, capture_output=True, timeout=limit_s).returncode == 0
        return False

    def terminate(self, grace_s: float | None = None) -> None:
        """Delete the pod: a signal, `grace_s` or its own, then the kill. Returns at once."""
        self.is_ending = True
        pid = self._first_process()
        if pid is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGTERM)
        limit_s = self.template.grace_s if grace_s is None else grace_s
        threading.Thread(target=self._end_of_grace, args=(limit_s,), daemon=True).start()

    def _end_of_grace(self, limit_s: float) -> None:
        self._ended.wait(limit_s)
        self.kill()

    def kill(self) -> None:
        """Lose the pod with all that runs in it, as with its node."""
        self.is_ending = True
        process = self._process
        if process is not None and process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)  # the namespace ends with its first process
            process.wait(_END_LIMIT_S)
        self._ended.set()
        self.network.leave(self.name)

    def _first_process(self) -> int | None:
        """Return the process that is number 1 in the pod, by its number outside."""
        process = self._process
        if process is None or process.poll() is not None:
            return None
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
        deadline = time.monotonic() + 1.0
        while time.monotonic() < deadline:
            with contextlib.suppress(OSError, IndexError):
                return int(children.read_text().split()[0])
            time.sleep(0.05)
        return None


def _values(container: Tree, given: Mapping[str, str]) -> dict[str, str]:
    """Return the environment that a container names; secrets are those of the rehearsal."""
    found: dict[str, Any] = {}
    for entry in container.get("env", ()):
        if "value" in entry:
            found[entry["name"]] = str(entry["value"])
        else:
            secret = entry["valueFrom"]["secretKeyRef"]
            found[entry["name"]] = given.get(f"{secret['name']}/{secret['key']}", "")
    return found


def _inner(words: Sequence[str]) -> str:
    return "exec " + " ".join(shlex.quote(word) for word in words)
