"""Prometheus over a service of this machine, with the alerts of the manifests in less time."""

from __future__ import annotations

import contextlib
import re
import shutil
import subprocess
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import yaml

from loadtest.report.machine import ROOT
from loadtest.service.served import STOP_TIMEOUT_S, free_port

_APART = ("setpriv", "--pdeathsig", "TERM")  # it ends with this process, however that ends
_RULES = ROOT / "k8s" / "base" / "monitoring.yaml"
_SCRAPED = "ray/prom_metrics_service_discovery.json"  # Ray writes its nodes' addresses there
_BEGIN_LIMIT_S = 20.0
_ASK_LIMIT_S = 10.0
_POLL_S = 0.2
_UNIT_S = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_WINDOW = re.compile(r"\[(\d+)([smhd])\]")
_TIME = re.compile(r"(\d+)([smhd])")


def rules(faster: float) -> dict[str, Any]:
    """Return the groups of rules of the manifests, with windows and delays `faster` times shorter.

    Thresholds and names stay as they are, those of recorded series too.
    """
    documents = yaml.safe_load_all(_RULES.read_text(encoding="utf-8"))
    [spec] = [one["spec"] for one in documents if one["kind"] == "PrometheusRule"]
    for rule in (rule for group in spec["groups"] for rule in group["rules"]):
        rule["expr"] = _WINDOW.sub(lambda found: f"[{_shorter(found, faster)}]", rule["expr"])
        if "for" in rule:
            rule["for"] = _TIME.sub(lambda found: _shorter(found, faster), rule["for"])
    return dict(spec)


def _shorter(found: re.Match[str], faster: float) -> str:
    return f"{1000 * int(found[1]) * _UNIT_S[found[2]] / faster:.0f}ms"


@dataclass(frozen=True)
class Prometheus:
    """A running Prometheus."""

    url: str

    def firing(self) -> set[str]:
        """Return the names of the alerts that fire now.

        Raises:
            httpx.HTTPError: it does not answer.
        """
        answer = httpx.get(f"{self.url}/api/v1/alerts", timeout=_ASK_LIMIT_S).raise_for_status()
        alerts: list[Mapping[str, Any]] = answer.json()["data"]["alerts"]
        return {one["labels"]["alertname"] for one in alerts if one["state"] == "firing"}


@contextlib.contextmanager
def prometheus(folder: Path, faster: float) -> Iterator[Prometheus]:
    """Run Prometheus over the Ray whose files are in `folder`, until the block ends.

    Args:
        folder: it keeps its own files there too.
        faster: see `rules`.

    Raises:
        ValueError: it is not installed.
        RuntimeError: it ended, or did not answer within a limit; with its log's end.
    """
    if shutil.which("prometheus") is None:
        raise ValueError("prometheus is not installed; Debian's package of that name has it")
    own = folder / "prometheus"
    own.mkdir()
    (own / "rules.yml").write_text(yaml.safe_dump(rules(faster)), encoding="utf-8")
    config = {
        "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
        "rule_files": ["rules.yml"],
        "scrape_configs": [{"job_name": "ray", "file_sd_configs": [{"files": [_file(folder)]}]}],
    }
    (own / "prometheus.yml").write_text(yaml.safe_dump(config), encoding="utf-8")
    address = f"127.0.0.1:{free_port()}"
    words = {
        "config.file": own / "prometheus.yml",
        "storage.tsdb.path": own / "data",
        "web.listen-address": address,
    }
    with (own / "log").open("wb") as log:
        process = subprocess.Popen(
            [*_APART, "prometheus", *(f"--{name}={value}" for name, value in words.items())],
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        found = Prometheus(f"http://{address}")
        _await(found, process, own / "log")
        yield found
    finally:
        process.terminate()
        process.wait(STOP_TIMEOUT_S)


def _file(folder: Path) -> str:
    return str(folder / _SCRAPED)


def _await(found: Prometheus, process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + _BEGIN_LIMIT_S
    while process.poll() is None and time.monotonic() < deadline:
        with contextlib.suppress(httpx.HTTPError):
            found.firing()
            return
        time.sleep(_POLL_S)
    raise RuntimeError(f"prometheus does not answer:\n{log.read_text(errors='replace')[-2000:]}")
