"""The file of a comparison: what is kept of a line, and what may be added to it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from loadtest.peer.record import PeerRecord, num_alike
from loadtest.peer.timed import Key, PeerLine, Timed

SETTINGS: dict[str, Any] = {
    "ways": {"ours": ["plain"], "llama.cpp": {}},
    "num_tokens": 8,
    "dtype": "bfloat16",
}
KEY = Key("engine", 1, "json", "ours", "plain")
THEIRS = Key("engine", 1, "json", "llama.cpp", "plain")


def answer(*token_ids: int) -> Timed:
    return Timed(
        num_tokens=3,
        num_decoded=2,
        decode_s=0.5,
        whole_s=1.0,
        token_ids=token_ids,
        num_drafted=4,
        num_accepted=1,
    )


def record(path: Path, settings: dict[str, Any] = SETTINGS, *, adds: bool) -> PeerRecord:
    return PeerRecord(path, ["--tokens", "8"], settings, adds=adds)


def test_runs_are_added_to_a_file(tmp_path: Path) -> None:
    path = tmp_path / "peer.json"
    for count in (1, 2):
        one = record(path, adds=True)
        assert one.num_runs(KEY) == count - 1
        one.add({KEY: [[answer(1, 2, 3)]]})
        one.finish()
    content = json.loads(path.read_text())
    assert len(content["commands"]) == 2
    [values] = content["lines"]
    assert values["tokens_per_s"] == 4.0  # two tokens in half a second
    assert values["acceptance"] == 0.25
    assert PeerLine.of_record(values).runs == [[answer()], [answer()]]


def test_without_adding_a_file_begins_anew(tmp_path: Path) -> None:
    path = tmp_path / "peer.json"
    for _ in range(2):
        record(path, adds=False).add({KEY: [[answer()]]})
    assert len(json.loads(path.read_text())["lines"][0]["num_tokens"]) == 1


def test_other_ways_are_not_added(tmp_path: Path) -> None:
    path = tmp_path / "peer.json"
    record(path, adds=True).add({KEY: [[answer()]]})
    with pytest.raises(ValueError, match="was made with num_tokens 8, not 9"):
        record(path, {**SETTINGS, "num_tokens": 9}, adds=True)


def test_tokens_that_both_begin_with_are_kept(tmp_path: Path) -> None:
    path = tmp_path / "peer.json"
    one = record(path, adds=False)
    one.add({KEY: [[answer(1, 2, 3)]], THEIRS: [[answer(1, 2, 4, 5)]]})
    one.note_alike(KEY, THEIRS)
    one.finish()
    [alike] = json.loads(path.read_text())["alike"]
    assert (alike["num_alike"], alike["of"]) == ([2], [3])
    assert num_alike([1, 2], [1, 2, 3]) == 2
    assert num_alike([], [1]) == 0
