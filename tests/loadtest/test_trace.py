"""`loadtest.trace` prints a request of a running service round by round."""

from __future__ import annotations

import asyncio
import json
import re
from pathlib import Path
from typing import Any

import pytest

from loadtest.trace import main, trace_lines
from tests.harness.served_demo import demo_over_http

TIME = {"round_ms": 3.0, "draft_ms": 1.0, "verify_ms": 2.0}
WHY = {
    "reason": "depth",
    "survival": [0.75, 0.5],
    "min_survival": 0.25,
    "depth": 2,
    "num_sessions": 3,
    "pass_ms": 2.0,
    "step_ms": 0.5,
}
ROUND = {
    "round": 0,
    "k": 2,
    "why": WHY,
    "drafted": [{"drafter": "draft_model", "num_tokens": 2, "num_accepted": 1}],
    "tests": [
        {"token": "A", "p": 0.5, "q": 0.4, "ratio": 1.0, "u": 0.9, "accepted": True, "allowed": 7},
        {"token": " cat", "p": 0.1, "q": 0.4, "ratio": 0.25, "u": 0.3, "accepted": False}
        | {"allowed": 1},
    ],
    "rejected": [" cat"],
    "last": "recovered",
    "num_tokens": 2,
    "time": TIME,
}
PLAIN = ROUND | {"round": 1, "k": None, "why": None, "drafted": [], "rejected": [], "tests": []}


def token(text: str, origin: str, number: int) -> dict[str, object]:
    place = {"offset": 0, "token": text, "origin": origin, "round": number}
    return place | {"logprob": -0.5, "allowed": 3}


def test_each_draft_token_is_a_line_where_tests_are_wanted() -> None:
    tokens = [token("A", "draft_model", 0), token(" dog", "target", 0)]
    lines = list(trace_lines({"rounds": [ROUND], "tokens": tokens}, has_tests=True))
    assert [" ".join(line.split()) for line in lines[3:]] == [
        "'A' p 0.500 q 0.400 ratio 1.000 u 0.900 accepted (7 tokens allowed)",
        "' cat' p 0.100 q 0.400 ratio 0.250 u 0.300 rejected (1 token allowed)",
        "' dog' model's probability 0.607 the target's own (3 tokens allowed)",
    ]


def test_a_round_is_a_line_and_a_plan_another() -> None:
    tokens = [
        token("A", "draft_model", 0),
        token(" dog", "target", 0),
        token("\x1b[2J\n", "target", 1),
    ]
    lines = list(trace_lines({"rounds": [ROUND, PLAIN], "tokens": tokens}))
    words = " ".join(lines[1].split())
    assert words == "0 2 draft_model 2 1/2 3.0 (1.0 + 2.0) A dog not: cat"
    assert "survival 0.75 0.50, a row must bring 0.25, depth 2, sessions 3" in lines[2]
    assert lines[3].split()[:4] == ["1", ".", "-", "-"]
    assert lines[3].endswith("\\x1b[2J\\n"), "nothing that a model writes reaches the terminal raw"
    assert len(lines) == 4
    coloured = list(trace_lines({"rounds": [ROUND], "tokens": tokens}, has_colours=True))
    assert "\x1b[32mA\x1b[0m dog" in coloured[1]


async def test_the_demo_is_traced(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    schema: dict[str, Any] = {"type": "object", "required": ["quantity"]}
    schema["properties"] = {"quantity": {"type": "integer", "minimum": 0, "maximum": 9}}
    schema["additionalProperties"] = False
    (tmp_path / "schema.json").write_text(json.dumps(schema))
    async with demo_over_http() as target:
        base = ["--url", f"{target.root_url}/", "--temperature", "0"]
        assert await asyncio.to_thread(main, [*base, "--k", "3", "--max-tokens", "60"]) == 0
        printed = capsys.readouterr().out
        schema_path = str(tmp_path / "schema.json")
        assert (
            await asyncio.to_thread(main, [*base, "6 lamps", "--k", "3", "--schema", schema_path])
            == 0
        )
        constrained = capsys.readouterr().out
        assert await asyncio.to_thread(main, [*base, "--k", "99"]) == 1
        assert "speculation.k: at most 8" in capsys.readouterr().err
    rows = re.findall(r"^ +(\d+)  \S+ +(\S.*?) +(-|\d+/\d+) +\d", printed, re.MULTILINE)
    assert [int(number) for number, _, _ in rows] == list(range(len(rows)))
    assert f"60 tokens in {len(rows)} rounds" in printed
    pairs = [tuple(map(int, counts.split("/"))) for _, _, counts in rows if counts != "-"]
    num_accepted, num_drafted = map(sum, zip(*pairs, strict=True))
    assert f"draft_model: {num_accepted} of {num_drafted} tokens accepted" in printed
    assert "forced" in constrained
    assert "quantity" in constrained
