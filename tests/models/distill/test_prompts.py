"""Prompts to distil on: written by templates, and from a folder with stories and word problems."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from models.distill.prompts import main

STORY = {"title": "The kite", "text": "Mia lost her kite.\u2028A crow brought it back."}
PROBLEM = {"question": "Tom has 3 + 4 pens. How many?", "answer": "3 + 4 = <<3+4=7>>7 pens."}


def run(monkeypatch: pytest.MonkeyPatch, *arguments: object) -> None:
    monkeypatch.setattr("sys.argv", ["prompts", *map(str, arguments)])
    main()


def lines(path: Path) -> list[list[dict[str, Any]]]:
    return [json.loads(line)["messages"] for line in path.read_text().splitlines()]


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    story = json.dumps(STORY, ensure_ascii=False)
    (tmp_path / "asp_pb_stories_ccby.jsonl").write_text(story + "\n\n")
    (tmp_path / "gsm8k_train_sample.jsonl").write_text(json.dumps(PROBLEM) + "\n")
    return tmp_path


def test_prompts_differ_have_all_words_filled_in_and_come_again_for_a_seed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, seed in (("one", 1), ("again", 1), ("other", 2)):
        run(monkeypatch, "--count", 300, "--seed", seed, "--output", tmp_path / name)
    one = [chat[0]["content"] for chat in lines(tmp_path / "one")]
    assert len(set(one)) == 300
    assert not [prompt for prompt in one if "{" in prompt or "}" in prompt]
    assert (tmp_path / "one").read_text() == (tmp_path / "again").read_text()
    assert (tmp_path / "one").read_text() != (tmp_path / "other").read_text()


def test_a_corpus_brings_its_texts_and_its_own_answers(
    corpus: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    output, answered = corpus / "out" / "prompts", corpus / "out" / "answered"
    run(
        monkeypatch,
        *("--count", 200, "--corpus", corpus, "--output", output, "--answered", answered),
    )
    asked = [chat[0]["content"] for chat in lines(output)]
    assert PROBLEM["question"] in asked
    assert f"Rewrite this text for adults: {STORY['text']}" in asked
    problem, story = lines(answered)
    assert problem[1] == {"role": "assistant", "content": "3 + 4 = 7 pens."}
    assert STORY["title"] in story[0]["content"]
    assert story[1] == {"role": "assistant", "content": STORY["text"]}
    assert [chat[0]["role"] for chat in (problem, story)] == ["user", "user"]


def test_a_file_that_cannot_be_written_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        run(monkeypatch, "--output", tmp_path / "out", "--answered", tmp_path)
    assert f"--answered: cannot write {tmp_path}: it is a folder" in capsys.readouterr().err


def test_more_than_the_templates_have_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("models.distill.prompts._WRITING", ("Write.",))
    for name in ("_KNOWLEDGE", "_ADVICE", "_CODING", "_REASONING"):
        monkeypatch.setattr(f"models.distill.prompts.{name}", ("Explain.",))
    with pytest.raises(ValueError, match="count must be at most 2 with these words, got 3"):
        run(monkeypatch, "--count", 3, "--output", tmp_path / "out")
