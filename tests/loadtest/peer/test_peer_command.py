"""The command itself: what it refuses, what it leaves out, and a whole run beside a stand-in."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from loadtest.peer.__main__ import main
from loadtest.report.machine import ROOT

DEMO = str(ROOT / "models" / "demo" / "target")
DEMO_DRAFT = str(ROOT / "models" / "demo" / "draft")
SHORT = [
    *("--target", DEMO, "--parts", "engine", "--threads", "1", "--tasks", "stories"),
    *("--prompts", "1", "--tokens", "8", "--k", "2", "--repeats", "1"),
]


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--target", "nowhere"], "nowhere"),
        (["--tasks", "poems"], "'poems' is none of"),
        (["--threads", "0"], "at least 1"),
        (["--llama-way", "ngram"], "must be NAME=OPTIONS"),
        (["--llama-server", __file__, "--gguf-folder", "nowhere"], "no converter"),
    ],
)
def test_what_cannot_be_is_refused(
    words: list[str], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match="2"):
        main([*SHORT, *words])
    assert told in capsys.readouterr().err


def test_without_the_binary_ours_is_measured_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "peer.json"
    main([*SHORT, "--llama-server", str(tmp_path / "none"), "--output", str(output)])
    content = json.loads(output.read_text())
    assert [line["way"] for line in content["lines"]] == ["plain", "k=2", "adaptive"]
    assert {line["side"] for line in content["lines"]} == {"ours"}
    assert content["skipped"].startswith("no binary at --llama-server")
    assert content["is_complete"]
    assert content["claims"] == []
    assert "llama.cpp was not measured: no binary" in capsys.readouterr().out


def test_both_sides_are_measured_by_turns(tmp_path: Path, llama_server: Path) -> None:
    gguf = tmp_path / "gguf"
    gguf.mkdir()
    for name in ("target", "draft"):
        (gguf / f"{name}.gguf").touch()
    output = tmp_path / "peer.json"
    words = ["--draft", DEMO_DRAFT, "--llama-server", str(llama_server), "--gguf-folder", str(gguf)]
    main([*SHORT, *words, "--llama-way", "mine=--spec-type ngram-mod", "--output", str(output)])
    content = json.loads(output.read_text())
    lines = {(line["side"], line["way"]): line for line in content["lines"]}
    assert list(lines) == [
        *(("ours", way) for way in ("plain", "k=2", "adaptive")),
        *(("llama.cpp", way) for way in ("plain", "draft k=2", "mine")),
    ]
    assert lines["llama.cpp", "plain"]["tokens_per_s"] == 500.0
    assert lines["llama.cpp", "mine"]["acceptance"] == 0.75
    assert lines["ours", "k=2"]["num_drafted"][0][0] > 0
    plain, drafted = content["claims"]
    assert plain["goal"] == 1.15
    assert drafted["goal"] == 1.4
    assert str(tmp_path) not in output.read_text()


@pytest.mark.skipif(
    not {"LLAMA_SERVER", "LLAMA_CONVERT"} <= set(os.environ),
    reason="LLAMA_SERVER and LLAMA_CONVERT name no llama.cpp",
)
def test_the_real_server_says_what_ours_says(tmp_path: Path) -> None:
    output = tmp_path / "peer.json"
    words = ["--llama-server", os.environ["LLAMA_SERVER"], "--draft", DEMO_DRAFT]
    words += ["--convert-script", os.environ["LLAMA_CONVERT"]]
    words += ["--gguf-folder", str(tmp_path), "--llama-lookups", "ngram-simple 2/8"]
    main([*SHORT, *words, "--output", str(output)])
    content = json.loads(output.read_text())
    [alike] = content["alike"]
    assert alike["num_alike"][0] >= 4
    assert {line["way"] for line in content["lines"] if line["side"] == "llama.cpp"} == {
        *("plain", "draft k=2", "ngram-simple 2/8")
    }
