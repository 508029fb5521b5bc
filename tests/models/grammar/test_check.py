"""Texts against grammars without generation: how far they go, and the command."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from models.grammar.check import Checked, check_text
from models.grammar.compiler import GrammarCompiler
from models.protocol.messages import Grammar
from tests.cases.grammar import json_schema

SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "age": {"type": "integer"}},
    "required": ["name", "age"],
    "additionalProperties": False,
}


def lark(text: str) -> Grammar:
    return Grammar(kind="lark", text=text)


@pytest.mark.parametrize(
    ("grammar", "text", "expected"),
    [
        (json_schema(SCHEMA), '{"name": "\u00e4", "age": 3}', Checked(24, True, [])),
        (json_schema(SCHEMA), '{"name": "\u00e4", "age": "3"}', Checked(22, False, ["-", "0"])),
        (json_schema(SCHEMA), '{"name":', Checked(8, False, [' "'])),
        (json_schema(SCHEMA), "", Checked(0, False, ['{"name": "'])),
        (lark('start: "a"+ "b"'), "aac", Checked(2, False, ["a", "b"])),
        (lark('start: "ab"'), "abc", Checked(2, True, [])),
        (lark('start: "\u00e9"'), "\u00e8", Checked(1, False, [])),
        (lark('start: "a" <|pad|> "b"'), "a<|pad|>b", Checked(9, True, [])),
        (lark('start: "a<|pad|>" | "a<|end|>"'), "a<|end|>", Checked(8, True, [])),
        (lark('start: "a"'), "a<|end|>", Checked(1, True, [])),
    ],
)
def test_how_far_a_text_goes(
    compiler: GrammarCompiler, grammar: Grammar, text: str, expected: Checked
) -> None:
    found = check_text(compiler.compile(grammar), text)
    assert (found.num_bytes, found.may_end) == (expected.num_bytes, expected.may_end)
    assert found.expected[: len(expected.expected)] == expected.expected
    if expected.may_end and not expected.expected:
        assert found.expected == []


def run(*arguments: str, text: str) -> tuple[int, str]:
    command = [sys.executable, "-m", "models.grammar.check", *arguments, "-"]
    done = subprocess.run(command, input=text, capture_output=True, text=True, timeout=60)
    return done.returncode, done.stdout + done.stderr


def test_the_command_says_where_a_text_stops(tmp_path: Path) -> None:
    schema, rules = tmp_path / "schema.json", tmp_path / "rules.ebnf"
    schema.write_text(json.dumps(SCHEMA))
    rules.write_text('root ::= "a\\n" root | "b"')
    good = '{"name": "Ann", "age": 3}'
    assert run("--schema", str(schema), text=good) == (0, "the whole text obeys the grammar\n")
    assert run("--schema", str(schema), "--chomp", text=good + "\n")[0] == 0
    status, said = run("--grammar", str(rules), text="a\na\nc")
    assert (status, said.splitlines()) == (
        1,
        ["the text leaves the grammar at byte 4 (line 3, column 1)", "expected: 'a', 'b'"],
    )
    status, said = run("--grammar", str(rules), text="bb")
    assert (status, said.splitlines()[1]) == (1, "expected: the end")
    assert run("--regex", "(", text="")[0] == 2
    assert "position 0: missing )" in run("--regex", "(", text="")[1]
    assert run("--schema", str(tmp_path / "none"), text="")[0] == 2
