"""`serve run` on a shipped config as a user starts it, on a free port, with a private Ray."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx
import psutil
import yaml

ROOT = Path(__file__).parent.parent
READY_TIMEOUT_S = 180.0
STOP_TIMEOUT_S = 60.0


@dataclass(frozen=True)
class ServedDemo:
    """A running service."""

    base_url: str
    process: subprocess.Popen[bytes]
    log_path: Path

    def log(self) -> str:
        return self.log_path.read_text(errors="replace")

    def stop(self) -> int:
        """Ctrl-C, as a user does; returns the exit status."""
        self.process.send_signal(signal.SIGINT)
        return self.process.wait(STOP_TIMEOUT_S)

    def descendants(self, title: str) -> list[psutil.Process]:
        """Processes of this service whose title (Ray sets it to the actor's class) has `title`."""
        found = []
        for process in psutil.Process(self.process.pid).children(recursive=True):
            with contextlib.suppress(psutil.Error):
                if title in " ".join(process.cmdline()):
                    found.append(process)
        return found

    def memory_bytes(self) -> int:
        """Proportional set size of the whole tree."""
        total = 0
        processes = [psutil.Process(self.process.pid)]
        processes += processes[0].children(recursive=True)
        for process in processes:
            with contextlib.suppress(psutil.Error):
                total += process.memory_full_info().pss
        return total


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def write_config(folder: Path, port: int, name: str) -> Path:
    """configs/`name` with another port; nothing else is changed."""
    config = yaml.safe_load((ROOT / "configs" / name).read_text(encoding="utf-8"))
    config["http_options"]["port"] = port
    path = folder / name
    path.write_text(yaml.safe_dump(config), encoding="utf-8")
    return path


@contextlib.contextmanager
def served_demo(config: str = "demo.yaml") -> Iterator[ServedDemo]:
    """Serve configs/`config` until the block ends."""
    folder = Path(tempfile.mkdtemp(prefix="or-"))  # short: Ray's sockets live below it
    port = free_port()
    environment = {
        **os.environ,
        "RAY_AUTH_MODE": "disabled",
        "RAY_TMPDIR": str(folder),
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_ADDRESS": "local",
        "PYTHONUNBUFFERED": "1",
    }
    log_path = folder / "serve.log"
    serve = Path(sys.executable).with_name("serve")
    with log_path.open("wb") as log:
        process = subprocess.Popen(
            [str(serve), "run", str(write_config(folder, port, config))],
            cwd=ROOT,
            env=environment,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            preexec_fn=_take_interrupts,
        )
    service = ServedDemo(f"http://127.0.0.1:{port}", process, log_path)
    try:
        _wait_ready(service)
        yield service
    finally:
        _end(process)
        shutil.rmtree(folder, ignore_errors=True)


def _take_interrupts() -> None:
    """A suite that runs in the background of a shell ignores Ctrl-C; the service must not."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def _wait_ready(service: ServedDemo) -> None:
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
    """Whatever is left of the service's own process group and tree."""
    if process.poll() is None:
        process.send_signal(signal.SIGINT)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(STOP_TIMEOUT_S)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait(STOP_TIMEOUT_S)
