"""Lark's notation: what is served, what a pattern and a schema within mean, what is refused."""

from __future__ import annotations

import json
import random
from collections.abc import Callable

import jsonschema
import pytest

from models.grammar.compiler import GrammarCompiler
from models.protocol.messages import Grammar
from tests.cases.grammar import Vocabulary, allowed, random_text
from tests.cases.rules import accepts, refusal, stops_at


def lark(text: str) -> Grammar:
    return Grammar(kind="lark", text=text)


@pytest.mark.parametrize(
    ("text", "good", "bad"),
    [
        ('start: "(" start ")" | "x"', ["x", "((x))"], ["", "(x", "x)"]),
        ('start: a | "b"\n?a: "c"+ -> many\n!_b: "d"', ["c", "cc", "b"], ["", "d"]),
        ('start: "a"~2..3 "b"{1,2} ["c"]', ["aab", "aaabbc"], ["ab", "aabbb"]),
        ('start: INT ("," INT)*\n%import common.INT\n%ignore / +/', ["1, 2 ,3"], ["1,,2"]),
        ('start: "A"i /b+/i "c".."e"  // an end', ["aBbd", "Abc"], ["abf", "ac"]),
        ("start: WORD # a word\nWORD: /[a-c]+/ & ~/b+/", ["abc", "bab"], ["b", "bb"]),
        ('start: "\\n\\t\\"\\\\\\u00e9\\x41"', ['\n\t"\\\u00e9A'], ["n"]),
        (r"start: /a\/b/ /\d+?/", ["a/b12"], ["a/b"]),
        ("start: upto /[a-z]/\nupto[lazy]: /.*b/", ["aabx"], ["aabbx", "aax"]),
        ('start: body\nbody[suffix="."]: /[a-z]*/', ["ab.", "."], ["ab", "a.b."]),
        ("%llguidance {}\nstart: /(?i:ab)c?/", ["aB", "abc"], ["abC"]),
        ('start: "" | "a"', ["", "a"], ["aa"]),
        # In the compiler's own dialect a set may be a difference, and `\d` has other members.
        (r"start: /[a&&b]/ /\w/", ["&\u00e9"], ["c\u00e9"]),
    ],
)
def test_what_a_grammar_means(
    vocabulary: Vocabulary,
    compiler: GrammarCompiler,
    taken: Callable[..., list[str]],
    text: str,
    good: list[str],
    bad: list[str],
) -> None:
    assert taken(lark(text), [*good, *bad]) == good
    compiled = compiler.compile(lark(text))
    assert [word for word in good if stops_at(compiled, vocabulary, word) is not None] == []


def test_a_schema_within_means_what_it_means_alone(
    vocabulary: Vocabulary, compiler: GrammarCompiler
) -> None:
    schema = {
        "type": "object",
        "properties": {"id": {"type": "string", "pattern": "^[A-Z]{2}$"}, "n": {"type": "integer"}},
        "required": ["id", "n"],
    }
    text = f'start: "call(" args ")" ("\\n" start)?\nargs: %json {json.dumps(schema, indent=1)}\n'
    compiled = compiler.compile(lark(text))
    rng = random.Random(3)
    for _ in range(10):
        calls = vocabulary.decode(random_text(compiled, vocabulary, rng)).split("\n")
        for call in calls:
            value = json.loads(call.removeprefix("call(").removesuffix(")"))
            jsonschema.validate(value, schema)
            assert call == f"call({json.dumps(value, ensure_ascii=False)})"
    assert not accepts(compiled, vocabulary, 'call({"id":"AB", "n": 1})')
    assert not accepts(compiled, vocabulary, r'call({"id": "AB", "n": 1, "\u0069d": 2})')


def test_special_tokens_are_named_and_no_text_spells_them(
    vocabulary: Vocabulary, compiler: GrammarCompiler
) -> None:
    [pad] = vocabulary.encode("<|pad|>")
    state = compiler.compile(lark('start: "a" <|pad|> "b"')).start()
    assert state.advance(vocabulary.encode("a")[0])
    assert allowed(state.row()) == [pad]
    assert state.forced(vocabulary.encode("a"), 8).tokens == [pad, vocabulary.encode("b")[0]]
    assert state.advance(pad)
    spelt = compiler.compile(lark('start: "<|pad|>b"')).start()
    assert pad not in allowed(spelt.row())
    forced = spelt.forced([], 32).tokens
    assert pad not in forced
    assert all(spelt.advance(token) for token in forced)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("start: item", 'line 1: unknown name: "item"'),
        ('\nstart: "a" | $', "line 2, column 14: '$' begins nothing that a grammar can hold"),
        ('start: ("a"', "a parenthesis or bracket is never closed"),
        ("start: start", "no text obeys it"),
        ("start: WORD\nWORD: WORD", 'line 2: circular reference in token "WORD"'),
        ('rule: "a"', "start"),
        ('start: "\\q"', r"line 1, column 9: \q is no escape of a character"),
        ('start: "\\ud800"', "is no escape of a character"),
        ('start: "ab".."c"', "a range is from one character to a later one"),
        ("start: /a(?=b)/", "column 8: regular expression: position 1: look-ahead ((?=)"),
        ("start: /(/", "line 1, column 8: regular expression: position 0: missing )"),
        ("start: /a/x", "line 1, column 8: the flag x is not supported"),
        ("start: /[^\\x00-\\U0010ffff]/", "no text matches this pattern"),
        ("start[max_tokens=3]: /a+/", "column 7: the attribute max_tokens is not supported"),
        ("start[temperature=0.5]: /a+/", "the attribute temperature is not supported"),
        ('start[stop="x"]: /a+/', "the attribute stop is not supported"),
        ("start[capture]: /a+/", "the attribute capture is not supported"),
        ("start[suffix=3]: /a+/", 'suffix takes a string: suffix="..."'),
        ("start[lazy", "the attributes are never closed"),
        ('start.2: "a"', "line 1, column 6: priorities are not supported"),
        ("start{x}: x", "line 1, column 6: templates are not supported"),
        ("start::_: a::0", "parametric rules are not supported"),
        ("start: @other", "there is no other grammar to refer to"),
        ("start: <[0,1]>", "only one token may be numbered, as in <[7]>"),
        ("start: <[*]>", "only one token may be numbered, as in <[7]>"),
        ("start: <|none|>", 'unknown special token: "<|none|>"'),
        ("start: <|end|>", ""),
        ("%declare A", "%declare: no lexer but the grammar's own can be declared"),
        ('%llguidance {"no_forcing": true}', "%llguidance with options or parts"),
        ('start: %regex {"substring_words": "a b"}', "%regex with options or parts"),
        ("start: %lark {}", "%lark: "),
        ("start: %json 3", "%json must be followed by {"),
        ('start: %json {"type": }', "line 1, column 14: this is not JSON"),
        (
            'start: %json {"type": "no"}',
            "line 1, column 14: %json: $.type: must be one or several of",
        ),
        (
            'start: "a"\n | %json {"properties": {"a": {"multipleOf": 99999}}}',
            "line 2, column 10: %json: $.properties.a.multipleOf: multipleOf 99999 is over",
        ),
        ('start: %json {"x-guidance": {"lenient": true}}', "x-guidance"),
        ("start: " + "(" * 49 + '"a"' + ")" * 49, "parentheses nest more than 48 deep"),
        ('start: "a"~10001', "repeat count 10001 is over 10000, the limit"),
        ("start: " + " | ".join(["/[a-z]{9000}/"] * 12), "with their repeats written out"),
        ("".join(f'r{i}: "a"\n' for i in range(1001)), "more than 1000 rules"),
        ("start: " + "%json {} " * 129, "more than 128 schemas, which is the limit"),
        ('start: "' + "a" * 70_000 + '"', "the grammar has 70009 bytes, the limit is 65536"),
    ],
)
def test_refusals_name_the_place(compiler: GrammarCompiler, text: str, reason: str) -> None:
    assert reason in refusal(compiler, lark(text))
