"""`python -m models.distill` from prompts to a folder that the loaders read."""

from __future__ import annotations

import json
import random
import shutil
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaForCausalLM

from models.distill.__main__ import main
from models.heads.medusa_folder import read_heads
from models.heads.mtp import read_mtp
from tests.fakes.engines import tiny_checkpoint

TARGET = Path(__file__).parents[3] / "models" / "demo" / "target"


def answers_file(folder: Path, vocab_size: int, count: int = 120) -> Path:
    """Answers that say the same ids again and again, so that little training is seen."""
    rng = random.Random(1)
    path = folder / "answers.jsonl"
    with path.open("w") as file:
        for number in range(count):
            prompt = [number % vocab_size, number // 7 % vocab_size]
            if number == 5:  # it fills rows, in which nothing is to be learnt
                prompt *= 2000
            answer = [rng.randrange(5) + 3 for _ in range(12)]
            file.write(json.dumps({"prompt_ids": prompt, "answer_ids": answer}) + "\n")
    return path


def run(monkeypatch: pytest.MonkeyPatch, *arguments: object) -> None:
    monkeypatch.setattr("sys.argv", ["distill", *map(str, arguments)])
    main()


@pytest.mark.parametrize("kind", ["mtp", "medusa", "draft"])
def test_each_kind_trains_goes_on_and_is_read(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = Path(tiny_checkpoint(noise=0.0))
    monkeypatch.setattr("models.distill.__main__.source_of", {target: "pypi"}.get)
    answers = answers_file(tmp_path, 64)
    size = ["--draft-vocab-size", 4] if kind != "draft" else ["--hidden-size", 16]
    said = ["--kind", kind, "--target", TARGET if kind == "draft" else target, "--answers", answers]
    said += ["--out", tmp_path / "out", "--work", tmp_path, "--depth", 3, *size, "--threads", 1]
    said += ["--step-tokens", 64, "--row-tokens", 32]
    monkeypatch.setattr(
        "models.distill.__main__.AutoTokenizer",
        type("Tokens", (), {"from_pretrained": lambda _: AutoTokenizer.from_pretrained(TARGET)}),
    )
    run(monkeypatch, *said, "--steps", 2)
    run(monkeypatch, *said, "--steps", 4, "--resume")
    assert len(json.loads((tmp_path / f"{kind}.losses.json").read_text())) == 4
    shutil.rmtree(tmp_path / "out")
    run(monkeypatch, *said, "--steps", 4, "--resume")  # it is at its end, and writes all again
    report = json.loads((tmp_path / "out" / "acceptance.json").read_text())
    assert report["target_source"] == (None if kind == "draft" else "pypi")
    assert report["answers"] + report["held_out_answers"] == 120
    assert len(report["acceptance"]) == (1 if kind == "draft" else 3)
    assert all(0 <= step["coupled"] <= step["rejection"] <= 1 for step in report["acceptance"])
    model = LlamaForCausalLM.from_pretrained(target, dtype=torch.float32)
    if kind == "draft":
        draft = AutoModelForCausalLM.from_pretrained(tmp_path / "out")
        assert draft.config.vocab_size == len(AutoTokenizer.from_pretrained(tmp_path / "out"))
        assert draft.dtype == torch.bfloat16
    elif kind == "mtp":
        parts = read_mtp(tmp_path / "out", model)
        assert len(torch.as_tensor(parts.draft_ids)) == 4
    else:
        weights = read_heads(tmp_path / "out", model.lm_head.weight)
        assert len(weights.layers) == 3
        assert {len(output) for output in weights.outputs} == {4}


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        ("--answers {0}/one.jsonl", "some hundreds of answers, got 1"),
        ("--kind draft --draft-vocab-size 4", "--draft-vocab-size is of heads"),
        ("--answers {0} --prompts {0}/one.jsonl", "is a folder; new answers need a file"),
        ("--row-tokens 200", "--row-tokens must be less for these answers of"),
        ("--row-tokens 5", "--row-tokens must be at least 6, got 5"),
        ("--steps 0", "--steps: must be a whole number of at least 1"),
        ("--target {0}/none", "none'; models.fetch fetches one"),
        ("--out {0}/answers.jsonl", "File exists"),
    ],
)
def test_what_cannot_end_well_is_refused_before_training(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    words: str,
    complaint: str,
) -> None:
    monkeypatch.setattr("models.distill.__main__.fit", None)
    monkeypatch.chdir(tmp_path)
    answers_file(tmp_path, 64, count=1).rename(tmp_path / "one.jsonl")
    said = ["--kind", "mtp", "--target", TARGET, "--answers", answers_file(tmp_path, 64)]
    with pytest.raises(SystemExit):
        run(monkeypatch, *said, "--out", tmp_path / "out", *words.format(tmp_path).split())
    assert complaint in capsys.readouterr().err
