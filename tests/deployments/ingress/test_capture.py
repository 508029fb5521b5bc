"""Answers that are kept to train drafters on: what, whose, how many and for how long."""

from __future__ import annotations

import json
import os
import stat
import time
from pathlib import Path

import pytest
from transformers import AutoTokenizer

from deployments.config.schema import CaptureConfig
from deployments.ingress.capture import Capture
from models.distill.answers import read_answers
from tests.deployments.ingress.test_service import DEMO, chat, config, serving

MIB = 1 << 20


def kept(folder: Path) -> list[dict[str, list[int]]]:
    lines = [line for path in sorted(folder.glob("*")) for line in path.read_text().splitlines()]
    return [json.loads(line) for line in lines]


async def test_a_drafter_can_be_trained_on_what_a_service_answered(tmp_path: Path) -> None:
    capture = CaptureConfig(folder=str(tmp_path / "kept"))
    async with serving(config(capture=capture)) as (client, _, service):
        answer = (await client.post("/v1/chat/completions", json=chat(n=2))).json()
        chosen = chat(structured_outputs={"choice": ["yes", "no"]})
        assert (await client.post("/v1/chat/completions", json=chosen)).status_code == 200
        refused = chat(structured_outputs={"json": {"type": "nonsense"}})
        assert (await client.post("/v1/chat/completions", json=refused)).status_code == 400
        assert (await client.get("/health")).status_code == 200
        service.close()
    tokenizer = AutoTokenizer.from_pretrained(DEMO / "target")
    found = read_answers(tmp_path / "kept", tokenizer)
    texts = sorted(tokenizer.decode(each.answer_ids, skip_special_tokens=True) for each in found)
    assert texts == sorted(choice["message"]["content"] for choice in answer["choices"])
    assert "Write a short story about a dog." in tokenizer.decode(found[0].prompt_ids)
    [path] = (tmp_path / "kept").iterdir()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


async def test_nothing_is_kept_unless_a_folder_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    async with serving(config()) as (client, _, service):
        assert (await client.post("/v1/chat/completions", json=chat())).status_code == 200
        service.close()
    assert kept(tmp_path) == []


def test_the_oldest_answers_make_room(tmp_path: Path) -> None:
    gone = tmp_path / "answers-0-1.jsonl"  # as a file that another router has just deleted
    gone.symlink_to("nowhere")
    capture = Capture(CaptureConfig(folder=str(tmp_path), max_size_mib=1))
    answer = list(range(1000))
    for number in range(400):  # some 2 MB
        capture.keep((number,), answer)
        time.sleep(0.001)
    capture.close()
    gone.unlink()
    numbers = [line["prompt_ids"][0] for line in kept(tmp_path)]
    assert sum(path.stat().st_size for path in tmp_path.iterdir()) <= MIB
    assert numbers == list(range(400 - len(numbers), 400))
    assert len(numbers) > 120
    assert capture.num_lost == 0


def test_answers_are_deleted_when_they_are_old(tmp_path: Path) -> None:
    old, mine = tmp_path / "answers-1-1.jsonl", tmp_path / "mine.jsonl"
    for path in (old, mine):
        path.write_text('{"prompt_ids": [1], "answer_ids": [2]}\n')
        os.utime(path, (1e9, 1e9))
    capture = Capture(CaptureConfig(folder=str(tmp_path), max_age_hours=1))
    capture.keep((3,), [4])
    capture.close()
    assert not old.exists()
    assert mine.exists()
    assert {"prompt_ids": [3], "answer_ids": [4]} in kept(tmp_path)


def test_a_disk_that_refuses_costs_answers_and_no_stream(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    capture = Capture(CaptureConfig(folder=str(tmp_path / "kept")))
    for path in (tmp_path / "kept").iterdir():
        path.unlink()
    (tmp_path / "kept").rmdir()
    for number in range(3):
        capture.keep((number,), [1])
    capture.close()
    assert capture.num_lost == 3
    told = [f"answers not kept in {tmp_path / 'kept'}: {n}, " in caplog.text for n in (1, 2, 3)]
    assert told == [True, True, False]


def test_a_folder_that_cannot_be_is_refused_at_the_start(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ValueError, match=r"router\.capture\.folder: cannot be written to"):
        Capture(CaptureConfig(folder=str(tmp_path / "file")))
