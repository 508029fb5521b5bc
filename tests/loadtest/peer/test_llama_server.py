"""llama-server as a child: what is asked of it, how its answers are read, and that it ends."""

from __future__ import annotations

import json
from pathlib import Path

import psutil
import pytest

from loadtest.peer.llama import LOOKUPS, LlamaCpp, draft_options, timed_by_client, timed_by_server

TIMINGS = {"predicted_n": 5, "predicted_ms": 80.0, "prompt_ms": 30.0}


def event(**values: object) -> str:
    return f"data: {json.dumps(values)}"


def children() -> set[int]:
    return {child.pid for child in psutil.Process().children(recursive=True)}


def test_its_own_timings_count_from_the_first_token() -> None:
    drafted = {**TIMINGS, "draft_n": 8, "draft_n_accepted": 3}
    answer = timed_by_server({"tokens": [1, 2, 3, 4, 5], "timings": drafted})
    assert (answer.num_tokens, answer.num_decoded) == (5, 4)
    assert answer.decode_s == pytest.approx(0.08)
    assert answer.whole_s == pytest.approx(0.11)
    assert (answer.num_drafted, answer.num_accepted) == (8, 3)
    assert answer.token_ids == (1, 2, 3, 4, 5)


def test_a_stream_is_timed_from_its_first_tokens_to_its_last() -> None:
    lines = [
        (event(tokens=[7, 8], stop=False), 2.0),
        ("", 2.0),
        (event(tokens=[9], stop=False), 2.5),
        (event(tokens=[1, 2], stop=False), 3.0),
        (event(tokens=[], stop=True, timings=TIMINGS), 9.0),
    ]
    answer = timed_by_client(lines, 1.0)
    assert (answer.num_tokens, answer.num_decoded) == (5, 3)  # two came at once, with no time
    assert (answer.decode_s, answer.whole_s) == (1.0, 2.0)
    assert answer.token_ids == (7, 8, 9, 1, 2)


@pytest.mark.parametrize(
    "lines",
    [[], [event(error={"message": "no"})], [event(tokens=[1], stop=False)]],
    ids=["nothing", "an error", "cut"],
)
def test_a_stream_without_an_end_is_an_error(lines: list[str]) -> None:
    with pytest.raises(RuntimeError, match="a stream without an end"):
        timed_by_client([(line, 1.0) for line in lines], 0.0)


def test_an_answer_without_timings_is_an_error() -> None:
    with pytest.raises(RuntimeError, match="an answer without timings"):
        timed_by_server({"content": "Paris"})


def test_a_server_is_asked_and_ended(llama_server: Path) -> None:
    before = children()
    with LlamaCpp(llama_server, Path("model.gguf"), 64).serving(1, ()) as client:
        plain, streamed = client.ask([3, 4], 6), client.ask_streamed([3, 4], 6)
    assert plain.token_ids == streamed.token_ids == (5, 6, 7, 8, 9, 10)
    assert (plain.num_decoded, plain.decode_s) == (5, 0.01)
    assert streamed.num_decoded == 5
    assert children() == before


def test_a_server_that_is_left_by_an_error_is_ended(llama_server: Path) -> None:
    before = children()
    kind = ("--spec-type", "refuse")
    with (
        pytest.raises(RuntimeError, match=r"HTTP 400.*no such kind"),
        LlamaCpp(llama_server, Path("model.gguf"), 64).serving(1, kind) as client,
    ):
        client.ask([1], 2)
    assert children() == before


def test_a_server_that_ends_says_why(llama_server: Path) -> None:
    with (
        pytest.raises(RuntimeError, match="did not become ready:\nunknown speculative type"),
        LlamaCpp(llama_server, Path("model.gguf"), 64).serving(1, ("--spec-type", "die")),
    ):
        raise AssertionError("it was never ready")


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
