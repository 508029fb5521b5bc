"""What cannot be served here is refused at once, with the sentence that `--check` says."""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import sys
import time
from pathlib import Path

import httpx
import pytest
import ray
import yaml
from ray import serve

from loadtest.experiments.rolling import set_ranks
from loadtest.rehearse.kuberay import wait_until
from loadtest.report.machine import ROOT
from loadtest.service.cluster import ROUTER, TARGET, on_one_machine, private_cluster
from loadtest.service.parts import leave_ray
from loadtest.service.served import Served, options, private_environment, section, started

pytestmark = [pytest.mark.ray, pytest.mark.timeout(600)]

QUESTION = {"role": "user", "content": "Write a short story."}
LIMIT_S = 180.0  # 15 s on a machine that does nothing else
SENTENCE = re.compile(r"cannot be served here: .*?by its model paths\)")
SENTENCE_OF_ONE = re.compile(r"cannot be served here: [^\n]*Qwen[^\n]*")


def run(*command: str, folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command,
        cwd=ROOT,
        env={**os.environ, **private_environment(folder)},
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )


def wait_for(pattern: re.Pattern[str], service: Served) -> re.Match[str]:
    """The first match in what `serve run` prints; Ray prefixes lines, and may cut them."""
    end = time.monotonic() + LIMIT_S
    while time.monotonic() < end:
        if match := pattern.search(service.log()):
            return match
        time.sleep(0.2)
    raise AssertionError(f"{pattern.pattern!r} is not in:\n{service.log()[-3000:]}")


def test_serve_run_says_what_the_check_says_and_ends(tmp_path: Path) -> None:
    shown, checked = refused_twice("one-node", SENTENCE, tmp_path)
    assert shown in checked
    for missing in ("2 GPUs (Target 1, Draft 1), there are 0", "Qwen2.5-14B"):
        assert missing in shown


def test_each_application_says_what_it_lacks_and_the_check_says_all(tmp_path: Path) -> None:
    shown, checked = refused_twice("prod", SENTENCE_OF_ONE, tmp_path)
    for missing in ("no node has the label outrider/role=", "no such folder: 'Qwen/Qwen2.5-"):
        assert missing in shown
        assert missing in checked
    assert "5 GPUs (Target 4, Draft 1)" in checked


def refused_twice(config: str, sentence: re.Pattern[str], folder: Path) -> tuple[str, str]:
    """Return what `serve run`, which ends, and `--check` say of a config that fits nowhere here."""
    with started(ROOT / "configs" / f"{config}.yaml") as service:
        shown = wait_for(sentence, service)[0]
        assert service.process.wait(LIMIT_S) not in (0, None)
        log = service.log()
    assert "so this `serve run` ends" in log
    checked = run(
        sys.executable,
        *("-m", "deployments.config", "--check", f"configs/{config}.yaml"),
        folder=folder,
    )
    assert checked.returncode == 1
    assert checked.stderr.count("\n") == 1
    return shown, checked.stderr


def test_serve_status_says_it_where_serve_runs_on() -> None:
    config = yaml.safe_load((ROOT / "configs" / "prod.yaml").read_text(encoding="utf-8"))
    config |= {"proxy_location": "Disabled", "http_options": {}}
    with private_cluster() as cluster:
        cluster.add(ROUTER)
        ray.init(address=cluster.gcs_address(), log_to_driver=False, namespace="refused")
        try:
            cluster.deploy(config)
            end = time.monotonic() + LIMIT_S
            while True:
                application = serve.status().applications.get("outrider")
                if application is not None and application.status == "DEPLOY_FAILED":
                    break
                assert time.monotonic() < end, application
                time.sleep(0.2)
        finally:
            leave_ray()
    assert "cannot be served here: " in application.message
    assert "Traceback" not in application.message


def test_a_draft_that_cannot_be_served_holds_nothing_up() -> None:
    """Its model is missing, and there is no node for it."""
    config = on_one_machine(ROOT / "configs" / "prod.yaml")
    set_ranks(config, 1)
    section(config, "draft")["model_path"] = "models/demo/nothing"
    for name in ("Router", "Constraint"):
        options(config, name)["num_replicas"] = 1
    with private_cluster() as cluster:
        for role in (ROUTER, TARGET):
            cluster.add(role)
        ray.init(address=cluster.gcs_address(), log_to_driver=False, namespace="refused")
        try:
            cluster.deploy(config)
            wait_until(lambda: is_healthy(cluster.base_url), LIMIT_S)
            applications = serve.status().applications
        finally:
            leave_ray()
        assert applications["draft"].status == "DEPLOY_FAILED"
        assert "draft.model_path: no such folder" in applications["draft"].message
        body = {"model": "outrider-demo", "messages": [QUESTION], "max_tokens": 8}
        answer = httpx.post(f"{cluster.base_url}/v1/chat/completions", json=body, timeout=60)
    assert answer.json()["usage"]["completion_tokens"] == 8


def is_healthy(base_url: str) -> bool:
    with contextlib.suppress(httpx.HTTPError):
        return httpx.get(f"{base_url}/health", timeout=15).status_code == httpx.codes.OK
    return False
