"""Every command refuses what it cannot do in one line, by name, and writes nothing."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from deployments import metrics
from deployments.config import __main__ as config
from loadtest import __main__ as loadtest
from loadtest.gpu_day import __main__ as gpu_day
from loadtest.grow import __main__ as grow
from loadtest.lookahead import __main__ as lookahead
from loadtest.report.machine import ROOT

LLAMA = "llama-demo --quick --threads 1 --way plain 'ours k=3' "

REFUSALS: list[tuple[Callable[[Sequence[str]], object], str, str]] = [
    # names that there are not
    (loadtest.main, "", "an experiment is needed, or a trial"),
    (loadtest.main, "forced --workload lists", "--workload: must be among order, long keys"),
    (loadtest.main, "forced --pair nowhere", "pair 'nowhere': target/config.json is missing"),
    (loadtest.main, "forced --pair x=tests", "pair 'x=tests': target/config.json is missing"),
    (loadtest.main, "study --prompts {folder}/none.jsonl", "cannot be read"),
    # numbers that mean no run, and files that are no records or cannot be written
    (loadtest.main, "forced --batch 0", "--batch: must be a whole number of at least 1, got '0'"),
    (loadtest.main, "forced --repeats 0", "--repeats: must be a whole number of at least 1"),
    (loadtest.main, "forced --tokens -1", "--tokens: must be a whole number of at least 1"),
    (loadtest.main, "forced --warm-s nan", "--warm-s: must be a number of at least 0, got 'nan'"),
    (loadtest.main, "--summary {folder}/none.json", "none.json: No such file or directory"),
    (loadtest.main, "--summary tests/cases/tools/zod.json", "zod.json is no record"),
    (loadtest.main, "forced --output {folder}", "it is a folder"),
    (metrics.main, "--output {folder}/target.gguf/x", "cannot write"),
    (config.main, "--keys --output {folder}", "argument --output: cannot write"),
    # options of another kind of command
    (loadtest.main, "quantized-passes --prompts demo", "quantized-passes asks for no prompts"),
    (loadtest.main, "forced --url http://x", "--url: forced asks at most one service"),
    (loadtest.main, "forced --set loud=3", "--set: an experiment has no such option"),
    (loadtest.main, "faults --url http://x", "--url: given 1 times, this trial asks at most 0"),
    (loadtest.main, "faults --repeats 3", "--repeats: a trial has no such option"),
    (loadtest.main, "matrix --threads 4", "--threads: a trial has no such option"),
    # terms of trials; all that are given count
    (loadtest.main, "hostile --set loud=3", "--set: must be of "),
    (loadtest.main, "rolling --set streams=x --set changes=1", "streams must be like 8, got 'x'"),
    (loadtest.main, "hostile --set relentless=maybe", "relentless must be like False, got 'maybe'"),
    (loadtest.main, "fuzz --set parts=nonsense", "--set: parts must be of engines, tools, "),
    # the calculator
    (loadtest.main, "--theory 1.2 0.1 5", "a must be within 0 to 1, got 1.2"),
    (loadtest.main, "--theory 0.8 -1 5", "c must be a number of at least 0, got -1"),
    (loadtest.main, "--theory 0.8 nan 5", "c must be a number of at least 0, got nan"),
    (loadtest.main, "--theory 0.8 inf 5", "c must be a number of at least 0, got inf"),
    (loadtest.main, "--theory 0.8 0.1 2.5", "k must be a whole number, got 2.5"),
    (loadtest.main, "--theory 0.8 0.1 -1", "k must be within 0 to 1000, got -1"),
    (loadtest.main, "--theory 0.8 0.1 1e9", "k must be within 0 to 1000, got 1000000000"),
    # llama.cpp
    (
        loadtest.main,
        LLAMA + "'plain llama' --llama-server no-llama --gguf-folder {folder}",
        "'no-llama'",
    ),
    (
        loadtest.main,
        LLAMA + f"'plain llama' --llama-server {__file__} --gguf-folder nowhere",
        "no converter",
    ),
    (loadtest.main, LLAMA + "--llama-way ngram", "must be NAME=OPTIONS"),
    (
        loadtest.main,
        LLAMA + "--llama-way 'mine=ngram-map-k 3/4'",
        "must be options of llama-server or one of ngram",
    ),
    # pairs that are grown
    (grow.main, "--layers 4", "num_hidden_layers must be at least the source's 8, got 4"),
    (grow.main, "--draft-heads 5", "hidden_size must be a multiple of num_attention_heads (5)"),
    (grow.main, "--layers 0", "argument --layers: must be a whole number of at least 1, got '0'"),
    (grow.main, "--acceptance 2", "acceptance must be above 0 and at most 1, got 2.0"),
    (grow.main, "--source nowhere", "source 'nowhere' is not a directory"),
    (
        grow.main,
        "--texts 1 --tokens 3000",
        "the texts leave -952 tokens of the model's context for prompts",
    ),
    # look-aheads
    (lookahead.main, "compare --draft x", "give its target too"),
    (lookahead.main, "compare --target models/demo/target", "needs a draft beside it"),
    (lookahead.main, "compare --pair models/demo --pair models/demo", "one pair at a time"),
    (lookahead.main, "compare --pair nowhere", "target/config.json is missing"),
    (lookahead.main, "verification --temperature 0 --prompts 1", "must be above 0"),
    # the hour on a GPU
    (gpu_day.main, "--device cpu --pair big", "--pair must be one of llama-8b"),
    (gpu_day.main, "--device cpu --parts all", "invalid choice: 'all'"),
]


@pytest.mark.parametrize(
    ("main", "words", "message"), REFUSALS, ids=[message for _, _, message in REFUSALS]
)
def test_a_command_refuses_by_name(
    main: Callable[[Sequence[str]], object],
    words: str,
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(ROOT)
    (tmp_path / "target.gguf").touch()
    output = tmp_path / "output"
    given = [*shlex.split(words.format(folder=tmp_path)), "--output", str(output)]
    with pytest.raises(SystemExit) as stopped:
        main(given)
    assert stopped.value.code == 2
    assert message in capsys.readouterr().err.splitlines()[-1]
    assert not [path for path in output.rglob("*") if path.is_file()]
