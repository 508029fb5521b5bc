"""The command on a tiny pair: every line is there, and each draft is the one it says."""

from __future__ import annotations

import json
import shutil

import pytest

from loadtest.bench.__main__ import main as bench
from loadtest.quantized import main
from tests.cases.tiny_llama import write_tiny_llama


def test_the_command_measures_both_drafts(tmp_path, capsys):
    target = write_tiny_llama(tmp_path / "target", vocab_size=4096)
    shutil.copytree(target, tmp_path / "draft")
    output = tmp_path / "out.json"
    numbers = "--threads 1 --k 2 --temperature 0 --prompts 2 --max-tokens 6 --batch 2"
    shapes = "--sessions 1 3 --rows 20 --turns 4"
    main(["--pair", f"tiny={tmp_path}", *numbers.split(), *shapes.split(), "--output", str(output)])
    content = json.loads(output.read_text())
    assert str(tmp_path) not in output.read_text()
    plain, int8 = content["acceptance"]
    assert plain["pair"] == "tiny"
    assert (plain["quantization"], int8["quantization"]) == (None, "int8")
    assert plain["rate"] == 1.0  # a model agrees with itself
    assert int8["num_rounds"] >= plain["num_rounds"]
    assert [(p["num_sessions"], p["num_rows"]) for p in content["passes"]] == [
        (1, 1),
        (3, 1),
        (1, 20),
    ]
    assert all(p["plain_ms"] > 0 and p["int8_ms"] > 0 for p in content["passes"])
    [weights] = content["weights"]
    assert weights["batch_invariant"] == [True, True]
    shown = capsys.readouterr()
    assert f"weights {weights['plain_mb']:.1f} MB" in shown.out
    assert "python -m loadtest.bench --draft-quantization int8" in shown.err
    words = "--k 2 --prompts 2 --tokens 6 --batch 1 3 --pass-repeats 3 --threads 1"
    options = ["--draft-quantization", "int8", *words.split(), "--output", str(output)]
    bench(["--pair", f"tiny={tmp_path}", *options])
    found = json.loads(output.read_text())
    compared = found["pairs"]["tiny"]["draft_quantization"]
    assert found["is_complete"]
    assert set(compared) == {"acceptance", "weights", "passes"}
    assert [line["rate"] for line in compared["acceptance"] if not line["quantization"]] == [1, 1]
    assert [p["num_sessions"] for p in compared["passes"]] == [1, 3, 1, 1]


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--k", "0"], "k must be at least 1, got 0"),
        (["--sessions", "2", "0"], "sessions must be at least 1, got 0"),
        (["--turns", "1"], "turns must be at least 2, got 1"),
        (["--rows", "600"], "rows must be at most 512, got 600"),
        (["--pair", "nowhere"], "pair 'nowhere' has no target/config.json"),
    ],
)
def test_bad_arguments_are_named(arguments, complaint, capsys):
    with pytest.raises(SystemExit):
        main(arguments)
    assert complaint in capsys.readouterr().err
