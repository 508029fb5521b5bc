"""llama-server as a child: what is asked of it, how its answers are read, and that it ends."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import psutil
import pytest

from loadtest.__main__ import main
from loadtest.frame.llama import (
    LOOKUPS,
    LlamaCpp,
    draft_options,
    in_turn,
    timed_by_server,
)
from loadtest.frame.runs import MEASURES, Ask, Run

STUB = Path(__file__).with_name("stub_llama_server.py")
TIMINGS = {"predicted_n": 5, "predicted_ms": 80.0, "prompt_ms": 30.0}


@pytest.fixture
def llama_server(tmp_path: Path) -> Path:
    """A binary that behaves like llama-server as far as the comparison sees it."""
    path = tmp_path / "llama-server"
    path.write_text(f'#!/bin/sh\nexec {sys.executable} {STUB} "$@"\n')
    path.chmod(0o755)
    return path


def children() -> set[int]:
    return {child.pid for child in psutil.Process().children(recursive=True)}


def test_its_own_timings_count_from_the_first_token() -> None:
    drafted = {**TIMINGS, "draft_n": 8, "draft_n_accepted": 3}
    answer = timed_by_server({"tokens": [1, 2, 3, 4, 5], "timings": drafted})
    assert (answer.num_tokens, answer.num_first) == (5, 1)
    assert answer.first_s == pytest.approx(0.03)
    assert answer.ended_s == pytest.approx(0.11)
    assert answer.stats.draft_acceptance_rate == 3 / 8
    assert answer.content == (1, 2, 3, 4, 5)
    run = Run(answers=in_turn([answer, answer]), batch=1)
    assert MEASURES["decode_tokens_per_s"](run) == pytest.approx(4 / 0.08)
    assert run.tokens_per_s == pytest.approx(5 / 0.11)


def test_an_answer_without_timings_is_an_error() -> None:
    with pytest.raises(RuntimeError, match="an answer without timings"):
        timed_by_server({"content": "Paris"})


def test_a_server_is_asked_and_ended_whether_it_answers_or_refuses(llama_server: Path) -> None:
    before = children()
    server = LlamaCpp(llama_server, Path("model.gguf"), 64)
    with server.serving(1, ()) as client:
        answer = client.ask(Ask(prompt_ids=(3, 4), max_tokens=6))
    assert answer.content == (5, 6, 7, 8, 9, 10)
    assert (answer.first_s, answer.ended_s) == pytest.approx((0.01, 0.02))
    assert children() == before
    with (
        pytest.raises(RuntimeError, match=r"HTTP 400.*no such kind"),
        server.serving(1, ("--spec-type", "refuse")) as client,
    ):
        client.ask(Ask(prompt_ids=(1,), max_tokens=2))
    assert children() == before


def test_the_command_has_model_threads_and_the_way() -> None:
    server = LlamaCpp(Path("bin/llama-server"), Path("target.gguf"), 1024)
    words = server.command(81, 2, draft_options(Path("draft.gguf"), 5))
    pairs = dict(zip(words[1::2], words[2::2], strict=True))
    assert pairs["--model"] == "target.gguf"
    assert pairs["--spec-draft-model"] == "draft.gguf"
    assert pairs["--spec-draft-n-max"] == "5"
    assert (pairs["--threads"], pairs["--threads-batch"], pairs["--parallel"]) == ("2", "2", "1")
    assert pairs["--host"] == "127.0.0.1"
    assert all(options[0] == "--spec-type" for options in LOOKUPS.values())


QUICK = ["llama-demo", "--quick", "--threads", "1", "--way", "plain", "ours k=3"]


def test_both_sides_are_measured_by_turns(tmp_path: Path, llama_server: Path) -> None:
    gguf = tmp_path / "gguf"
    gguf.mkdir()
    for name in ("target", "draft"):
        (gguf / f"{name}.gguf").touch()
    output = tmp_path / "record.json"
    words = ["plain llama", "llama draft k=3", "llama mine", "--llama-server", str(llama_server)]
    words += ["--llama-way", "mine=--spec-type ngram-mod", "--gguf-folder", str(gguf)]
    assert main([*QUICK, *words, "--output", str(output)]) == 0
    record = json.loads(output.read_text())
    rows = {row["way"]: row for row in record["samples"]}
    assert list(rows) == ["plain", "ours k=3", "plain llama", "llama draft k=3", "llama mine"]
    assert rows["plain llama"]["runs"]["decode_tokens_per_s"] == [500.0, 500.0]
    assert rows["plain llama"]["alike"]["plain"] < 0.5
    assert rows["llama mine"]["runs"]["acceptance"] == [0.75, 0.75]
    assert [claim["goal"] for claim in record["claims"]] == [1.15, 1.4]
    assert record["settings"]["skipped"] == []
    assert str(tmp_path) not in output.read_text()


@pytest.mark.skipif(
    not {"LLAMA_SERVER", "LLAMA_CONVERT"} <= set(os.environ),
    reason="LLAMA_SERVER and LLAMA_CONVERT name no llama.cpp",
)
def test_the_real_server_says_what_ours_says(tmp_path: Path) -> None:
    output = tmp_path / "record.json"
    words = ["plain llama", "llama draft k=3", "llama ngram-simple 2/8"]
    words += ["--llama-server", os.environ["LLAMA_SERVER"]]
    words += ["--convert-script", os.environ["LLAMA_CONVERT"], "--gguf-folder", str(tmp_path)]
    assert main([*QUICK, *words, "--output", str(output)]) == 0
    rows = {row["way"]: row for row in json.loads(output.read_text())["samples"]}
    assert rows["plain llama"]["alike"]["plain"] >= 0.25
    assert {"llama draft k=3", "llama ngram-simple 2/8"} <= set(rows)
