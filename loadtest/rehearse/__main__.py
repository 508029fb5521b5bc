"""Brings manifests up on this machine as they are, and plays what happens to a cluster.

python -m loadtest.rehearse k8s/base --output rehearse-base.json

Each pod is a set of namespaces, with its own files, processes and address; making them needs root.
KubeRay's rules are those of `kuberay.py`. What is replaced is printed (`substitutions.py`).
"""

from __future__ import annotations

import argparse
import hashlib
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from loadtest.client.cases import constrained_cases, free_cases
from loadtest.client.streams import FaultLoad
from loadtest.rehearse.gateway import Gateway
from loadtest.rehearse.kuberay import Cluster, wait_until
from loadtest.rehearse.manifests import HEAD, Manifests
from loadtest.rehearse.substitutions import SUBSTITUTIONS
from loadtest.report.record import head, write_json

_KEY = "a-key-of-the-rehearsal"
_KEPT = ("PATH", "HOME", "LANG", "HF_HUB_OFFLINE", "XDG_CACHE_HOME", "NUMBA_CPU_NAME")
_INSTALL_LIMIT_S, _SETTLE_LIMIT_S, _STEADY_LIMIT_S = 900.0, 1000.0, 120.0
_AFTER_S = 10.0  # of load once all is whole again


@dataclass
class Rehearsal:
    """A cluster under load, and what was found."""

    cluster: Cluster
    gateway: Gateway
    load: FaultLoad
    num_endpoints: int = 0
    events: list[dict[str, Any]] = field(default_factory=list)

    def install(self) -> None:
        """Wait for the first install to serve, then take the texts that streams must have."""
        took_s = wait_until(lambda: self.cluster.is_serving, _INSTALL_LIMIT_S)
        took_s += wait_until(self.is_whole, _SETTLE_LIMIT_S)
        self.num_endpoints = len(self.cluster.endpoints())
        self.load.base_url = self.gateway.url
        self.load.prepare()
        self._found("first install", {"ready_s": took_s, "endpoints": self.num_endpoints})

    def play(self, name: str, happen: Callable[[], bool]) -> None:
        """Let something happen under load; count what clients saw until all was whole again."""
        self.load.take_failures()
        self.load.start()
        try:
            self.load.wait_steady(_STEADY_LIMIT_S)
            began_s = time.monotonic()
            if not happen():
                self._found(name, {"is_blocked": True})
                return
            self.cluster.forget()
            took_s = wait_until(self.is_whole, _SETTLE_LIMIT_S)
            time.sleep(_AFTER_S)
            figures: dict[str, Any] = self.load.figures(began_s, time.monotonic())
        finally:
            self.load.stop()
        failures = self.load.take_failures()
        figures |= {"failed": len(failures), "whole_s": took_s}
        figures["failures"] = sorted({str(failure)[:160] for failure in failures})[:5]
        self._found(name, figures)

    def is_whole(self) -> bool:
        """Return whether all pods run, Serve says all is well, and routers are reached."""
        cluster = self.cluster
        for template in cluster.manifests.pods():
            pods = [pod for pod in cluster.of(template.group) if pod.is_running]
            if sum(cluster.is_up(pod) for pod in pods) < template.replicas:
                return False
        return (
            cluster.is_serving
            and cluster.is_healthy
            and len(cluster.endpoints()) >= max(1, self.num_endpoints)
        )

    def evict(self, group: str) -> bool:
        """Drain the node of a pod of this group; return whether its budgets allow that."""
        return self.cluster.evict(self.cluster.of(group)[0])

    def lose(self, group: str) -> bool:
        """Lose the node of a pod of this group, at once."""
        self.cluster.of(group)[0].kill()
        return True

    def _found(self, name: str, figures: dict[str, Any]) -> None:
        shown = {k: round(v, 1) if isinstance(v, float) else v for k, v in figures.items()}
        self.events.append({"event": name, **shown})
        print(f"{name}: {shown}", flush=True)


def main(argv: Sequence[str] | None = None) -> int:
    """Rehearse from the command line; exit status 1: something did not come up or did not go on."""
    words = sys.argv[1:] if argv is None else list(argv)
    arguments = _parser().parse_args(words)
    if os.geteuid() != 0:
        print("a rehearsal makes network namespaces and mounts: run it as root", file=sys.stderr)
        return 2
    for name, text in SUBSTITUTIONS.items():
        print(f"replaced: {name}: {text}")
    folder = Path(tempfile.mkdtemp(prefix="or-rehearse-"))
    secrets = folder / "secrets"
    secrets.mkdir()
    (secrets / "keys").write_text(f"tests {hashlib.sha256(_KEY.encode()).hexdigest()}\n")
    cluster = Cluster(
        manifests=Manifests.of(arguments.folder),
        folder=folder,
        environment={name: os.environ[name] for name in _KEPT if name in os.environ},
        fetch_s=arguments.fetch_s,
    )
    gateway = Gateway(cluster.endpoints)
    cases = [*free_cases(arguments.streams // 2), *constrained_cases(arguments.streams // 2)]
    rehearsal = Rehearsal(cluster, gateway, FaultLoad("", cases, api_key=_KEY))
    record = head("python -m loadtest.rehearse", words, vars(arguments))
    problem = ""
    try:
        cluster.start()
        rehearsal.install()
        for name in arguments.events:
            kind, _, group = name.partition(":")
            happen = rehearsal.evict if kind == "drain" else rehearsal.lose
            rehearsal.play(f"{kind} of {group}", lambda group=group, do=happen: do(group))  # type: ignore[misc]
    except (TimeoutError, RuntimeError) as error:
        problem = f"{error}; Serve says {cluster.said}"
        print(problem, file=sys.stderr)
    finally:
        cluster.close()
        gateway.close()
        if arguments.output:
            write_json(arguments.output, record | {"events": rehearsal.events, "problem": problem})
        if arguments.keep:
            print(f"logs: {folder}")
        else:
            shutil.rmtree(folder, ignore_errors=True)
    failed = [one for one in rehearsal.events if one.get("failed") or one.get("is_blocked")]
    return int(bool(problem or failed))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m loadtest.rehearse",
        description=(__doc__ or "").split("\n", maxsplit=1)[0],
    )
    parser.add_argument("folder", type=Path, help="of a kustomization, such as k8s/base")
    parser.add_argument(
        "--events",
        nargs="*",
        default=[
            "drain:router",
            "drain:draft",
            "drain:target",
            f"lose:{HEAD}",
            "lose:router",
            "lose:draft",
            "lose:target",
        ],
        help="drain:GROUP or lose:GROUP, in this order",
    )
    parser.add_argument("--streams", type=int, default=8, help="half of them under a schema")
    parser.add_argument("--fetch-s", type=float, default=30.0, help="that models take to come")
    parser.add_argument("--keep", action="store_true", help="keep the pods' logs")
    parser.add_argument("--output", type=Path, help="the record")
    return parser


if __name__ == "__main__":
    sys.exit(main())
