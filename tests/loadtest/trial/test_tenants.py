"""Two clients with keys: routes, keys and admission are the real ones, the engines are a script."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from deployments.api.keys import ApiKeys
from deployments.config.applications import IMPORT_PATH
from deployments.ingress.admission import AdmissionControl
from deployments.ingress.metrics import RequestMetrics
from deployments.serve.instruments import Meters
from loadtest.experiments.tenants import TENANTS, write_keys
from loadtest.trial.scene import Scene, Terms
from loadtest.trial.trial import Place
from tests.fakes.http import ScriptedGenerator
from tests.harness.http_clients import served

BLOCK_S = 0.2  # each of the three of an answer
TERMS = {
    **TENANTS.terms,
    **{"rounds": 1, "seconds": 4.0, "settle_s": 0.5, "rate": 1.5, "at_once": 8, "long_tokens": 20},
}


@pytest.mark.day(2)
def test_who_asks_for_all_is_waited_for_and_who_may_not_have_it_is_not(tmp_path: Path) -> None:
    metrics = RequestMetrics(Meters({"model_name": "tiny"}))
    admission = AdmissionControl(
        max_sessions=4, max_queued=64, queue_wait_s=60.0, on_load=metrics.set_load
    )
    config = tmp_path / "config.yaml"
    args = "{target: {model_path: x}, router: {model_name: tiny}}"
    config.write_text(
        f"applications: [{{name: a, import_path: {IMPORT_PATH}, args: {args}}}]", encoding="utf-8"
    )
    keys = write_keys(tmp_path / "keys", {"modest": "", "greedy": "", "limited": "sessions=2"})
    trial = replace(TENANTS, place=Place(is_watched=False), config=str(config))
    with served(
        ScriptedGenerator(delay_s=BLOCK_S),
        slot=admission.slot,
        metrics=metrics.text,
        api_keys=ApiKeys(keys),
    ) as url:
        found = trial.run(Scene(terms=Terms(**TERMS), urls=[url]))
    assert found.problems == []
    first_s = {row["way"]: row["runs"]["first_text_p95_s"][0] for row in found.rows}
    assert list(first_s) == ["alone", "beside a greedy client", "beside a limited client"]
    # With all places taken, one is free every quarter of an answer, at the earliest.
    assert first_s["beside a greedy client"] > first_s["alone"] + BLOCK_S / 2
    assert first_s["beside a limited client"] < first_s["beside a greedy client"] - BLOCK_S / 4
    running = {row["way"]: row["runs"]["peak_running"][0] for row in found.rows}
    assert running["beside a greedy client"] == 4
    answers = [event["answers"] for event in found.extra["events"][1:]]
    assert [set(each) for each in answers] == [{"a long answer: 200"}] * 2
    [greedy, limited] = [each["a long answer: 200"] for each in answers]
    assert greedy > limited > 0
    claims = list(trial.claims[0](found.rows, Terms(**TERMS)))
    assert [claim.goal for claim in claims] == [1.5, 1.5]
