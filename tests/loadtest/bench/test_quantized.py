"""The bench of drafts on a tiny pair: every line is there, and each draft is the one it says."""

from __future__ import annotations

import json
import shutil

from loadtest.quantized import main
from tests.cases.tiny_llama import write_tiny_llama


def test_the_command_measures_both_drafts(tmp_path, capsys):
    target = write_tiny_llama(tmp_path / "target", vocab_size=4096)
    shutil.copytree(target, tmp_path / "draft")
    output = tmp_path / "out.json"
    words = "--threads 1 --k 2 --prompts 2 --tokens 6 --batch 1 3 --pass-repeats 3"
    main(["--pair", f"tiny={tmp_path}", *words.split(), "--output", str(output)])
    content = json.loads(output.read_text())
    assert str(tmp_path) not in output.read_text()
    assert content["k"] == 2
    lines = {(line["quantization"], line["temperature"]): line for line in content["acceptance"]}
    assert lines[None, 0.0]["rate"] == lines[None, 1.0]["rate"] == 1.0  # it agrees with itself
    assert lines["int8", 0.0]["num_rounds"] >= lines[None, 0.0]["num_rounds"]
    assert {line["pair"] for line in content["acceptance"]} == {"tiny"}
    shapes = [(line["num_sessions"], line["num_rows"]) for line in content["passes"]]
    assert shapes == [(1, 1), (3, 1), (1, 32), (1, 256)]
    assert all(line["plain_ms"] > 0 and line["int8_ms"] > 0 for line in content["passes"])
    [weights] = content["weights"]
    assert weights["batch_invariant"] == [True, True]
    shown = capsys.readouterr()
    assert f"weights {weights['plain_mb']:.1f} MB" in shown.out
    assert "replaced by: python -m loadtest.bench --draft-quantization int8" in shown.err
