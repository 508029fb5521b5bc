"""Two peers that write words: every way in which one may be wrong is found where it is."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from scipy import stats

from loadtest.__main__ import main
from loadtest.client.answers import Answer
from loadtest.experiments.same_texts import Asked as Way
from loadtest.experiments.same_texts import excess_chance, fate_of
from tests.fakes.openai_peer import OTHER_WORD, Peer, served_peer

PROMPTS = [
    {"task": "story", "prompt": "Write about a boat."},
    {"task": "story", "prompt": "Write about a lamp."},
    {"task": "json", "prompt": "A lamp as JSON.", "schema": {"type": "object"}},
]
NUM_TOKENS = 12


@pytest.fixture
def peers() -> Iterator[tuple[Peer, Peer]]:
    with served_peer(Peer()) as a, served_peer(Peer()) as b:
        yield a, b


class Asked:
    """The command on prompts of its own; what it has printed and written."""

    def __init__(self, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self._folder = folder
        self._capsys = capsys
        self.result: dict[str, Any] = {}
        self.printed = self.complaint = ""

    def __call__(self, *words: str, **terms: object) -> int:
        prompts, output = self._folder / "prompts.jsonl", self._folder / "same.json"
        prompts.write_text("\n".join(map(json.dumps, PROMPTS)), encoding="utf-8")
        fixed = ["same", *words, "--output", str(output), "--set", f"prompts={prompts}"]
        terms = {"tokens": NUM_TOKENS, **terms}
        try:
            status = main([*fixed, *(f"{name}={value}" for name, value in terms.items())])
        except SystemExit as stopped:
            status = int(stopped.code or 0)
        captured = self._capsys.readouterr()
        self.printed, self.complaint = captured.out, captured.err
        if output.exists():
            self.result = json.loads(output.read_text(encoding="utf-8"))
        return status

    def counts(self, pattern: str, workload: str = "all") -> set[tuple[int, int]]:
        """Differing and compared questions of each comparison whose name matches."""
        return {
            (row["runs"]["differing"][0], row["runs"]["compared"][0])
            for row in self.result["samples"]
            if row["workload"] == workload and re.search(pattern, row["way"])
        }


@pytest.fixture
def asked(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Asked:
    return Asked(tmp_path, capsys)


def urls(*peers: Peer) -> list[str]:
    return [word for peer in peers for word in ("--url", peer.url)]


def test_equal_servers_are_the_same_by_every_route_and_delivery(
    peers: tuple[Peer, Peer], asked: Asked
) -> None:
    ways = {"routes": "chat,completions", "deliveries": "stream,whole"}
    assert asked(*urls(*peers), **ways) == 0
    assert asked.result["fates"] == {"same": 18}  # 3 prompts, 3 temperatures, 2 routes
    for kind in ("A against B", "itself", "time against", "stream against"):
        assert asked.counts(kind) == {(0, 18)}
    assert "SAME: each of 18 questions got one text" in asked.printed


def test_both_sides_get_the_same_bodies(peers: tuple[Peer, Peer], asked: Asked) -> None:
    assert asked(*urls(*peers), b_body='{"top_p": 0.9, "seed": null}', runs=1) == 1
    a, b = (
        sorted(json.dumps({**one, "seed": None, "top_p": 1}, sort_keys=True) for one in side)
        for side in (peers[0].requests, peers[1].requests)
    )
    assert a == b
    assert all(one["top_p"] == 0.9 and "seed" not in one for one in peers[1].requests)


@pytest.mark.parametrize("route", ["chat", "completions"])
@pytest.mark.parametrize("delivery", ["stream", "whole"])
def test_a_changed_word_is_found_in_its_task_at_its_token(
    peers: tuple[Peer, Peer], asked: Asked, route: str, delivery: str
) -> None:
    peers[1].wrong_at, peers[1].wrong_word = 7, "as JSON"
    assert asked(*urls(*peers), routes=route, deliveries=delivery) == 1
    assert asked.result["fates"] == {"same": 6, "differs": 3}
    assert asked.counts("A against B") == {(3, 9)}
    assert asked.counts("itself") == {(0, 9)}
    for temperature in (0, 0.7, 1):
        for task, num in (("story", 2), ("json", 1)):
            wrong = int(task == "json")
            where = f"{task}, T = {temperature}"
            assert asked.counts("A against B", where) == {(wrong, num)}
    for sample in asked.result["differences"]:
        assert sample["question"].startswith("json 1, ")
        assert sample["at"] == 7 * len(" ant") + 1  # the blank before the word is the same
        assert sample["b"].startswith("owl")
        assert sample["place"]["index"] == 7
        assert sample["place"]["tokens"][1] == OTHER_WORD
        assert sample["place"]["margin"] == 0.5
    assert "DIFFERENT: 3 of 9 questions" in asked.printed
    assert '"at": 29' in asked.printed


@pytest.mark.parametrize(("has_tokenize", "index"), [(True, 7), (False, None)])
def test_without_logprobs_the_tokenizer_tells_the_token(
    peers: tuple[Peer, Peer], asked: Asked, has_tokenize: bool, index: int | None
) -> None:
    for peer in peers:
        peer.has_logprobs, peer.has_tokenize = False, has_tokenize
    peers[1].wrong_at, peers[1].wrong_word = 7, "as JSON"
    assert asked(*urls(*peers), temperatures=0) == 1
    [sample] = asked.result["differences"]
    assert (sample["place"] or {}).get("index") == index


def test_a_server_that_drops_seeds_is_told_from_another_server(
    peers: tuple[Peer, Peer], asked: Asked
) -> None:
    peers[1].drops_seed = True
    assert asked(*urls(*peers), temperatures=1, crowds=1) == 1
    assert asked.result["fates"] == {"unsteady": 3}
    assert "B IS NOT ITS OWN MATCH: 3 of 3 questions" in asked.printed
    assert "A IS NOT" not in asked.printed
    assert "DIFFERENT" not in asked.printed
    assert "no more than chance allows" in asked.printed
    assert asked(*urls(peers[0])) == 0, "compared with itself"
    assert asked.counts("A against B") == set()
    assert asked.counts("itself") == asked.counts("time against") == {(0, 9)}
    assert asked(*urls(peers[1])) == 1
    assert "A IS NOT ITS OWN MATCH" in asked.printed


def test_another_end_of_the_same_text_is_a_difference(
    peers: tuple[Peer, Peer], asked: Asked
) -> None:
    peers[1].finish_reason = "stop"
    assert asked(*urls(*peers)) == 1
    assert '"ends": ["length", "stop"]' in asked.printed


def test_broken_streams_and_full_queues_are_asked_again(
    peers: tuple[Peer, Peer], asked: Asked
) -> None:
    peers[0].num_broken = peers[1].num_refused = 2
    # The first try is the probe's, which retries as well.
    assert asked(*urls(*peers), crowds=2, runs=1) == 0
    peers[0].num_broken = 1_000
    assert asked(*urls(*peers), retries=0) == 2
    assert "the stream was cut after" in asked.complaint


def test_answers_that_never_come_leave_the_question_open(
    peers: tuple[Peer, Peer], asked: Asked, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = Peer.takes

    def takes(peer: Peer, counter: str) -> bool:  # all but the probe's
        is_probe = len(peer.requests) <= 1
        return broken(peer, counter) and not is_probe

    monkeypatch.setattr(Peer, "takes", takes)
    peers[1].num_broken = 1_000
    assert asked(*urls(*peers), retries=0, temperatures=0) == 1
    assert asked.result["fates"] == {"unanswered": 3}
    assert asked.counts("A against B") == {(0, 0)}
    assert "UNKNOWN: 3 of 3 questions lack an answer" in asked.printed
    assert asked.result["unanswered"][0].startswith("story 1, chat, temperature 0")


def test_keys_come_from_the_environment_and_go_to_their_side_alone(
    peers: tuple[Peer, Peer], asked: Asked, monkeypatch: pytest.MonkeyPatch
) -> None:
    peers[1].api_key = "a key"
    monkeypatch.setenv("OUTRIDER_API_KEY", "ours, which no other server may see")
    assert asked(*urls(*peers)) == 2
    assert "refuses the API key" in asked.complaint
    assert asked(*urls(*peers), b_key_env="PEERS_KEY") == 2
    assert "PEERS_KEY holds no API key" in asked.complaint
    monkeypatch.setenv("PEERS_KEY", "a key")
    assert asked(*urls(*peers), b_key_env="PEERS_KEY") == 0
    assert "a key" not in json.dumps(asked.result)


@pytest.mark.parametrize(
    ("words", "terms", "complaint"),
    [
        ([], {"a_model": "other"}, "serves words, not other"),
        ([], {"tasks": "poem"}, "no prompt is of 'poem', there are story, json"),
        ([], {"b_body": "[1]"}, "a_body, b_body: must be a JSON object, got [1]"),
        (["--url", "http://127.0.0.1:1"], {}, "given 3 times"),
    ],
    ids=["model", "task", "body", "urls"],
)
def test_what_cannot_be_asked_is_said(
    peers: tuple[Peer, Peer],
    asked: Asked,
    words: list[str],
    terms: dict[str, str],
    complaint: str,
) -> None:
    assert asked(*urls(*peers), *words, **terms) == 2
    assert complaint in asked.complaint
    assert not asked.result.get("samples")


def test_a_server_that_refuses_the_request_or_is_gone_cannot_be_asked(
    peers: tuple[Peer, Peer], asked: Asked
) -> None:
    peers[1].refusal = "unknown field seed"
    assert asked(*urls(*peers)) == 2
    assert "HTTP 400" in asked.complaint
    assert "unknown field seed" in asked.complaint
    assert len(peers[1].requests) == 1, "a refusal is not tried again"
    with served_peer(Peer()) as gone:
        pass
    assert asked(*urls(peers[0], gone)) == 2
    assert "ConnectError" in asked.complaint


@pytest.mark.parametrize(("between_only", "floor_only"), [(0, 0), (3, 0), (9, 1), (5, 5), (1, 9)])
def test_the_excess_over_the_floor_is_an_exact_sign_test(
    between_only: int, floor_only: int
) -> None:
    num = between_only + floor_only
    known = 1.0 if not num else stats.binomtest(between_only, num, alternative="greater").pvalue
    assert excess_chance(between_only, floor_only) == pytest.approx(known)


@pytest.mark.parametrize(
    ("of_a", "of_b", "fate"),
    [
        (["x", "x"], ["x", "x"], "same"),
        (["x", "x"], ["y", "y"], "differs"),
        (["x", "x"], ["x.", "x."], "differs"),
        (["x", "x"], ["x", "y"], "unsteady"),
        (["x", "y"], ["z", "z"], "unsteady"),
        (["x", ""], ["x", "x"], "unanswered"),
        (["x", ""], ["y", "y"], "differs"),
        (["", ""], ["", ""], "unanswered"),
    ],
)
def test_the_fate_of_a_question(of_a: list[str], of_b: list[str], fate: str) -> None:
    """A text is one character; a full stop after it is another end, and none at all an error."""
    ways = [
        (
            Way(side=side, delivery="stream", crowd=1, run=run),
            Answer(
                text=text[:1],
                finish_reason="length" if text.endswith(".") else "stop",
                is_done=True,
                error="" if text else "lost",
            ),
        )
        for side, texts in (("A", of_a), ("B", of_b))
        for run, text in enumerate(texts)
    ]
    assert fate_of(ways) == fate
