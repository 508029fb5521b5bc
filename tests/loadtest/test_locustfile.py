"""locust itself over the locustfile, against the routes with a scripted generator."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.fakes.http import ScriptedGenerator
from tests.harness.http_clients import served

ROOT = Path(__file__).resolve().parents[2]


def run_locust(
    tmp_path: Path, *options: str, generator: ScriptedGenerator | None = None
) -> tuple[dict[str, Any], str]:
    """The summary and the report of a run against scripted routes."""
    summary, report = tmp_path / "summary.json", tmp_path / "report.html"
    with served(generator or ScriptedGenerator()) as url:
        subprocess.run(
            [
                *(sys.executable, "-m", "locust", "-f", "loadtest/locustfile.py"),
                *("--host", url, "--headless", "--model", "tiny", "--max-tokens", "20"),
                *("--record-max-tokens", "90"),
                *("--think-s", "0.02", "--shared-words", "20", "--html", str(report)),
                *("--summary", str(summary), *options),
            ],
            cwd=ROOT,
            capture_output=True,
            timeout=90,
            check=False,  # locust ends with 1 when there were failures, and here there are
        )
    return json.loads(summary.read_text()), report.read_text()


@pytest.mark.slow
def test_users_are_counted_by_kind_and_wrong_answers_fail(tmp_path: Path) -> None:
    generator = ScriptedGenerator()
    summary, report = run_locust(tmp_path, "-u", "4", "-r", "4", "-t", "8s", generator=generator)
    seeds = [request.sampling.seed for request in generator.requests]
    requests = {entry["name"]: entry for entry in summary["requests"]}
    # The script answers "The bear." to everything: right for a chat, wrong for a record.
    assert requests["chat"]["count"] > 10
    assert requests["chat"]["failures"] == 0
    assert requests["record"]["failures"] == requests["record"]["count"] > 5
    assert requests["cancelled chat"]["failures"] == 0
    assert requests["bad request"]["count"] > 0
    assert requests["bad request"]["failures"] == 0
    assert requests["chat: acceptance, %"]["mean"] == pytest.approx(60)
    drafts = summary["drafts"]
    assert drafts["kinds"]["chat"]["k"] == pytest.approx(2.5), "a number, of rounds with a draft"
    assert drafts["kinds"]["chat"]["num_draft_tokens_by"]["ngram"] == 3 * requests["chat"]["count"]
    assert drafts["whole"]["draft_model_share"] == pytest.approx(0.7)
    assert drafts["in_words"].startswith("The draft model drafted ")
    assert requests["chat: TTFT, ms"]["count"] == requests["chat"]["count"]
    assert any("not JSON" in problem for problem in summary["problems"])
    rows = {row["workload"]: row for row in summary["samples"]}
    assert (rows["chat"]["way"], rows["chat"]["batch"]) == ("adaptive", 4)
    runs = rows["chat"]["runs"]
    assert runs["asked"] == [requests["chat"]["count"]]
    assert runs["first_ms"] == [requests["chat: TTFT, ms"]["median"]]
    assert runs["acceptance"] == [pytest.approx(0.6)]
    # Figures are no requests: the report's total counts what was asked and nothing else.
    asked = sum(entry["count"] for name, entry in requests.items() if ": " not in name)
    assert summary["num_requests"] == asked
    assert summary["settings"]["seed"] > 0, "drawn, and told"
    assert len(set(seeds)) == len(seeds) > 10, "no seed comes twice"
    assert summary["machine"]["cores"]
    assert "<html" in report


@pytest.mark.slow
def test_a_shape_varies_the_users_and_ends_the_run_and_seeds_come_again(tmp_path: Path) -> None:
    generator = ScriptedGenerator()
    shape = ("--shape", "spike", "--shape-s", "8", "--spike-factor", "3", "-u", "2")
    summary, _ = run_locust(
        tmp_path, *shape, "--repeat-seeds", "2", "--k", "3", generator=generator
    )
    requests = {entry["name"]: entry for entry in summary["requests"]}
    assert requests["chat"]["count"] > 5
    assert requests["chat"]["failures"] == 0
    assert summary["peak_users"] == 6
    assert {request.speculation.num_speculative_tokens for request in generator.requests} == {3}
    seeds = [request.sampling.seed for request in generator.requests]
    assert len(seeds) > 2 * len(("chat", "record", "shared")) >= len(set(seeds))


@pytest.mark.slow
def test_a_trace_is_replayed_and_ends_the_run(tmp_path: Path) -> None:
    trace = tmp_path / "trace.csv"
    lines = [f"{0.1 * number},chat" for number in range(9)] + ["0.5,bad"]
    trace.write_text("at_s,kind\n" + "\n".join(lines) + "\n")
    summary, _ = run_locust(tmp_path, "--trace", str(trace), "-t", "60s")
    counts = {entry["name"]: entry["count"] for entry in summary["requests"]}
    assert counts["chat"] == 9
    assert counts["bad request"] == 1
    assert summary["problems"] == []
