"""The trial of alerts: the manifests' rules in less time, and the judgement of a cause."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from loadtest.experiments.alerts import Trouble, nothing
from loadtest.service.prometheus import rules
from loadtest.trial.scene import Scene


def test_windows_and_delays_are_shorter_and_names_stay() -> None:
    before, after = json.dumps(rules(1)), json.dumps(rules(20))
    assert "[300000ms]" in before
    assert "[15000ms]" in after
    assert before.count("outrider:request_errors:ratio_rate5m") == 3
    assert after.count("outrider:request_errors:ratio_rate5m") == 3
    [delay] = [
        rule["for"]
        for group in rules(20)["groups"]
        for rule in group["rules"]
        if rule.get("alert") == "OutriderNoTarget"
    ]
    assert delay == "1500ms"


@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is not installed")
def test_prometheus_accepts_the_rules(tmp_path: Path) -> None:
    file = tmp_path / "rules.json"
    file.write_text(json.dumps(rules(20)), encoding="utf-8")
    told = subprocess.run(["promtool", "check", "rules", file], capture_output=True, text=True)
    assert told.returncode == 0, told.stdout + told.stderr


def scene(*firing: set[str], limit_s: float) -> Scene:
    """A scene whose Prometheus tells these alerts, one set a look, and then none."""
    left = list(firing)
    prometheus = SimpleNamespace(firing=lambda: left.pop(0) if left else set())
    terms = SimpleNamespace(limit_s=limit_s)
    made: Any = SimpleNamespace(prometheus=prometheus, terms=terms, notes={}, problems=[])
    return cast(Scene, made)


@pytest.mark.parametrize(
    ("looks", "problems"),
    [
        ([{"Must"}], []),
        ([{"May"}, {"Must", "May"}], []),
        ([{"Other", "Must"}], ["Other fired without a cause"]),
        ([set()] * 100, ["Must did not fire within 0.1 s"]),
        ([{"Must"}] * 100, ["Must still fires after 0.1 s"]),
    ],
)
def test_a_cause_is_judged_by_the_alerts_that_fire(
    looks: list[set[str]], problems: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("loadtest.experiments.alerts._POLL_S", 0.005)
    event = Trouble(way="a cause", cause=nothing, fire=frozenset({"Must"}), may=frozenset({"May"}))
    played = scene(*looks, limit_s=0.1 if len(looks) == 100 else 60.0)
    measured = event.happen(played)
    assert played.problems == problems
    assert measured["clears_after_s"] >= 0
