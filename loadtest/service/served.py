"""`serve run` of a config file as a user starts it, but private: own Ray, own port, own session.

A service started here is ended here, as a whole session. No other process on the machine is
touched. The config file is the given one apart from the HTTP port and what `change` does to it.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import psutil
import yaml

from deployments.config.applications import applications_of
from loadtest.report.machine import ROOT
from loadtest.service.attached import gcs_address
from loadtest.service.sessions import kill_session, let_others_go_first

# The pods have the same (k8s/base/rayservice.yaml): one event loop for Serve's part and ours.
POD_ENVIRONMENT = {  # of k8s/base
    "RAY_SERVE_THROUGHPUT_OPTIMIZED": "1",
    "RAY_SERVE_ENABLE_DIRECT_INGRESS": "0",
    "RAY_SERVE_PROXY_USE_GRPC": "1",
    "RAY_SERVE_REQUEST_PATH_LOG_BUFFER_SIZE": "1",  # so that a refusal is said
    "RAY_SERVE_LOG_TO_STDERR": "1",
    "RAY_SERVE_PROXY_HEALTH_CHECK_PERIOD_S": "0.25",
    "RAY_SERVE_PROXY_HEALTH_CHECK_TIMEOUT_S": "3",
}
READY_TIMEOUT_S = 180.0
# Background processes of a shell ignore Ctrl-C; the service must not. No function in the child: for
# that Python forks, and gRPC's threads in this process may end such a child.
_TAKES_INTERRUPTS = ("env", "--default-signal=INT")
STOP_TIMEOUT_S = 60.0
# Above those of Ray's workers, below those that Linux gives, in an order of this process's own.
_FIRST_PORT, _END_OF_PORTS = 20_000, 32_000
_PORTS = itertools.cycle(
    random.SystemRandom().sample(range(_FIRST_PORT, _END_OF_PORTS), _END_OF_PORTS - _FIRST_PORT)
)
_MOST_TRIES = 100

Config = dict[str, Any]


@dataclass(frozen=True)
class Served:
    """A running service. `folder` holds its log and Ray's; it goes with the service."""

    base_url: str
    process: subprocess.Popen[bytes]
    log_path: Path
    folder: Path

    def log(self) -> str:
        """Return the output of `serve run` so far."""
        return self.log_path.read_text(errors="replace")

    def stop(self) -> int:
        """Ctrl-C, as a user does; returns the exit status."""
        self.process.send_signal(signal.SIGINT)
        return self.process.wait(STOP_TIMEOUT_S)

    def processes(self) -> list[psutil.Process]:
        """`serve run` itself and all that descends from it and lives."""
        root = psutil.Process(self.process.pid)
        return [root, *root.children(recursive=True)]

    def descendants(self, title: str) -> list[psutil.Process]:
        """Processes of this service whose title (Ray sets it to the actor's class) has `title`."""
        found = []
        for process in self.processes()[1:]:
            with contextlib.suppress(psutil.Error):
                if title in " ".join(process.cmdline()):
                    found.append(process)
        return found

    def gcs_address(self) -> str:
        """Return the address of this service's Ray.

        Raises:
            RuntimeError: its raylet is gone.
        """
        return gcs_address(self.processes())

    def memory_bytes(self) -> int:
        """Proportional set size of the whole tree."""
        total = 0
        for process in self.processes():
            with contextlib.suppress(psutil.Error):
                total += process.memory_full_info().pss
        return total


@contextlib.contextmanager
def served(
    config_path: Path,
    *,
    change: Callable[[Config], None] | None = None,
    keeps_folder: Callable[[], bool] = lambda: False,
    environment: Mapping[str, str] | None = None,
) -> Iterator[Served]:
    """Serve a config file until the block ends; ready when the block begins.

    Args:
        config_path: a Serve config file.
        change: edits the parsed file in place before it is used.
        keeps_folder: asked at the end whether to leave the logs where they are.
        environment: further variables of the service's processes.

    Raises:
        RuntimeError: it ended, or was not ready within READY_TIMEOUT_S; with the log's end.
    """
    with started(
        config_path, change=change, keeps_folder=keeps_folder, environment=environment
    ) as service:
        _wait_ready(service)
        yield service


@contextlib.contextmanager
def measured(config_path: Path, **options: Any) -> Iterator[Served]:
    """Do as `served`; once it is ready, what measures it has a core first."""
    with served(config_path, **options) as service:
        let_others_go_first(service.process.pid)
        yield service


@contextlib.contextmanager
def started(
    config_path: Path,
    *,
    change: Callable[[Config], None] | None = None,
    keeps_folder: Callable[[], bool] = lambda: False,
    environment: Mapping[str, str] | None = None,
) -> Iterator[Served]:
    """Start a service like `served`, but do not wait: it may never be ready."""
    folder = Path(tempfile.mkdtemp(prefix="or-"))  # short: Ray's sockets live below it
    port = free_port()
    path, prefix = _write_config(config_path, folder, port, change)
    log_path = folder / "serve.log"
    serve = Path(sys.executable).with_name("serve")
    with log_path.open("wb") as log:
        process = subprocess.Popen(
            [*_TAKES_INTERRUPTS, str(serve), "run", str(path)],
            cwd=ROOT,
            env={
                **os.environ,
                **private_environment(folder),
                "PYTHONUNBUFFERED": "1",
                **(environment or {}),
            },
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        with ended_in_order():
            yield Served(f"http://127.0.0.1:{port}{prefix}", process, log_path, folder)
    finally:
        _end(process)
        if not keeps_folder():
            shutil.rmtree(folder, ignore_errors=True)


def private_environment(folder: Path) -> dict[str, str]:
    """Return the environment that makes Ray below `folder` private."""
    return {
        "RAY_AUTH_MODE": "disabled",
        "RAY_TMPDIR": str(folder),
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_ADDRESS": "local",
    }


def section(config: Config, name: str) -> Config:
    """Return a section of `args` to change in place, made where there is none.

    Args:
        config: a parsed Serve config file, which leaves out what is as by default.
        name: dotted, like `router.timeouts`.
    """
    return applications_of(config).section(name)


def set_spares(config: Config, has_spare: bool) -> None:
    """Give every part a spare that may have one, or none."""
    for part in ("target", "constraint", "router"):
        section(config, part)["spare"] = has_spare


def options(config: Config, deployment: str) -> Config:
    """Return the options of a deployment, to be read and changed in place."""
    return applications_of(config).options(deployment)


def free_port() -> int:
    """Return a TCP port that was free a moment ago, and that nobody is given who asks for any.

    Ray's own servers and all connections are given some, and a service binds its own much later.
    Calls give others, until all were given.

    Raises:
        OSError: none is free.
    """
    for port in itertools.islice(_PORTS, _MOST_TRIES):
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port
    raise OSError(f"none of {_MOST_TRIES} ports from {_FIRST_PORT} to {_END_OF_PORTS} is free")


def _write_config(
    source: Path, folder: Path, port: int, change: Callable[[Config], None] | None
) -> tuple[Path, str]:
    """Write the served file; return it and the prefix of its routers' paths."""
    config = yaml.safe_load(source.read_text(encoding="utf-8"))
    config.setdefault("http_options", {})["port"] = port
    if change is not None:
        change(config)
    path = folder / source.name
    path.write_text(yaml.safe_dump(config), encoding="utf-8")
    return path, (applications_of(config).parts[0].tree.get("route_prefix") or "/").rstrip("/")


@contextlib.contextmanager
def ended_in_order() -> Iterator[None]:
    """SIGTERM ends the block as Ctrl-C does: what it has started must not outlive it."""
    if threading.current_thread() is not threading.main_thread():  # only that one takes signals
        yield
        return
    before = signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _wait_ready(service: Served) -> None:
    deadline = time.monotonic() + READY_TIMEOUT_S
    while time.monotonic() < deadline:
        if service.process.poll() is not None:
            raise RuntimeError(f"serve run ended:\n{service.log()[-4000:]}")
        with contextlib.suppress(httpx.HTTPError):
            if httpx.get(f"{service.base_url}/health", timeout=5).status_code == 200:
                return
        time.sleep(0.5)
    raise RuntimeError(f"not ready within {READY_TIMEOUT_S:g} s:\n{service.log()[-4000:]}")


def _end(process: subprocess.Popen[bytes]) -> None:
    """Stop the service as a user does, then kill what is left of its session."""
    if process.poll() is None:
        process.send_signal(signal.SIGINT)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(STOP_TIMEOUT_S)
    kill_session(process, STOP_TIMEOUT_S)
