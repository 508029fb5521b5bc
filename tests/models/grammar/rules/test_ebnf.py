"""EBNF: a grammar keeps its language, however its lexemes overlap; refusals name the place."""

from __future__ import annotations

import json
import random
from collections.abc import Callable

import pytest

from models.grammar.compiler import GrammarCompiler
from models.grammar.rules.ebnf import START, is_ebnf, parse_ebnf
from models.grammar.rules.write import written
from models.grammar.state import CompiledGrammar
from models.protocol.messages import Grammar
from tests.cases.grammar import Vocabulary, random_text
from tests.cases.rules import JSON_EBNF, RandomGrammar, accepts, refusal, stops_at

MAX_CHARS = 5


def ebnf(text: str) -> Grammar:
    return Grammar(kind="ebnf", text=text)


def words(compiled: CompiledGrammar, vocabulary: Vocabulary, letters: str) -> set[str]:
    """All texts of at most `MAX_CHARS` letters that the grammar takes, letter by letter."""
    tokens = {letter: vocabulary.encode(letter)[0] for letter in letters}
    found = set()
    waiting = [("", compiled.start())]
    while waiting:
        text, state = waiting.pop()
        if state.is_complete:
            found.add(text)
        for letter in letters if len(text) < MAX_CHARS else "":
            following = state.copy()
            if following.advance(tokens[letter]):
                waiting.append((text + letter, following))
    return found


@pytest.mark.parametrize("seed", range(60))
def test_a_grammar_keeps_its_language(
    vocabulary: Vocabulary, compiler: GrammarCompiler, seed: int
) -> None:
    grammar = RandomGrammar(random.Random(seed), letters="abc", num_rules=3)
    expected = grammar.words(MAX_CHARS)
    if not grammar.ends():
        assert "never ends" in refusal(compiler, ebnf(grammar.text()))
        return
    compiled = compiler.compile(ebnf(grammar.text()))
    assert words(compiled, vocabulary, "abc") == expected, grammar.text()


@pytest.mark.parametrize(
    ("text", "expected", "has_lexemes"),
    [
        ('root ::= [a-b]+ "b"', {"ab", "bb", "aab", "abb", "bab", "bbb"}, True),
        ('root ::= "a" root "b" | "ab" "c"', {"abc"}, True),
        ('root ::= "a" x | "ab" x\nx ::= "b" x "c" | "c"', {"ac", "abc", "abcc", "abbcc"}, False),
        ('root ::= x root "c" | x\nx ::= [ab]+', {"a", "b", "aa", "ab", "ba", "bb"}, False),
        ('root ::= ws "c"\nws ::= ([ab] ws)?', {"c", "ac", "bc", "aac", "abc"}, True),
    ],
)
def test_the_lexer_reads_lexemes_only_where_it_may(
    vocabulary: Vocabulary,
    compiler: GrammarCompiler,
    text: str,
    expected: set[str],
    has_lexemes: bool,
) -> None:
    found = words(compiler.compile(ebnf(text)), vocabulary, "abc")
    assert expected <= found
    lark = written(parse_ebnf(text), START)
    assert ("TEXT" in lark) == has_lexemes


def test_walks_of_json_in_ebnf_end_in_json(
    vocabulary: Vocabulary, compiler: GrammarCompiler
) -> None:
    compiled = compiler.compile(ebnf(JSON_EBNF))
    rng = random.Random(5)
    for _ in range(10):
        json.loads(vocabulary.decode(random_text(compiled, vocabulary, rng)))


@pytest.mark.parametrize(
    ("body", "chars"),
    [
        (r"[a-c\]\\\-^]", "abc]\\-^"),
        (r"[^\x00-\x60d-\U0010ffff]", "abc"),
        (r'"\n" | "\t" | "\"" | "\\" | "\u00e9" | "\x41"', '\n\t"\\\u00e9A'),
        (r"'a' | '\'' | [\[]", "a'["),
        (".", "a\n\u00e9\U0001f600"),
    ],
)
def test_characters(taken: Callable[..., list[str]], body: str, chars: str) -> None:
    universe = "abcde]\\-^\n\t\"'[A\u00e9\U0001f600"
    found = set(taken(ebnf(f"root ::= {body}"), list(universe)))
    assert found == set(universe if body == "." else chars)


@pytest.mark.parametrize(
    ("text", "good", "bad"),
    [
        (
            JSON_EBNF,
            ['{"a": [1, -2.5e3, {"b":null}],\n  "\u00e4\\n\\u00e9":""}'],
            ['{"a": 01}', "{'a': 1}", '{"a": 1,}', '{"a": 1', "[]", '{"a": "\n"}'],
        ),
        (
            'root ::= "a"{2} x{1,2} "b"{,1} "c"{2,}\nx ::= "(" root? ")" # nothing more',
            ["aa()bcc", "aa(aa()cc)()ccccc"],
            ["a()cc", "aacc", "aa()()()cc", "aa()bbcc", "aa()c"],
        ),
        ('root ::= ("ac" | "ad" | "bc" | "bd") ("," root)?', ["ac,ad,bc,bd"], ["ac,", "cc"]),
    ],
    ids=["json", "repeats", "alternatives"],
)
def test_what_a_grammar_means(
    taken: Callable[..., list[str]], text: str, good: list[str], bad: list[str]
) -> None:
    assert taken(ebnf(text), [*good, *bad]) == good


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ('root ::= "a" | item', "line 1, column 16: the rule item is not defined"),
        ('root ::= "a"\nroot ::= "b"', "line 2, column 1: the rule root is defined twice"),
        ('rot ::= "a"', "no rule is named root"),
        ('root ::= "a"\n"b" ::= "c"', "line 2, column 5: '::=' has nothing before it"),
        ("root ::= ", None),
        ('root ::= ("a"', "line 1, column 10: this parenthesis is never closed"),
        ('root ::= "a")', "line 1, column 13: ')' where a rule must begin: name ::= ..."),
        ('root ::= "a', "line 1, column 10: '\"' begins nothing that a grammar can hold"),
        ("root ::= [z-a]", "line 1, column 10: a range ends before it begins in [z-a]"),
        ("root ::= [^\\x00-\\U0010ffff]", "line 1, column 10: no character is in this set"),
        ('root ::= "\\q"', "line 1, column 11: '\\\\q' is no character of a text"),
        ('root ::= "\\ud800"', "is no character of a text"),
        ("root ::= * ", "line 1, column 10: '*' has nothing before it"),
        ('root ::= "a"{3,2}', "the least number of a repeat is above its most"),
        ('root ::= "a"{10001}', "column 13: repeat count 10001 is over the limit of 10000"),
        ('root ::= "a"{,}', "a repeat needs a number"),
        ("root ::= <think>", "line 1, column 10: a token (<think>) is not supported"),
        ('root ::= "a" (= "b")', "line 1, column 14: look-ahead ((=) is not supported"),
        ('root ::= root "a"', "the rule root leads to itself in every way and never ends"),
        ('root ::= "a" | x\nx ::= y\ny ::= x', "the rule x leads to itself in every way"),
        ("root ::= " + "(" * 49 + '"a"' + ")" * 49, "groups nest more than 48 deep"),
        ("root ::= ((x{99}){99}){99}\nx ::= [a-z]", "970299 characters with its repeats"),
        ("".join(f'r{i} ::= "a"\n' for i in range(1001)), "more than 1000 rules"),
    ],
)
def test_refusals_name_the_place(compiler: GrammarCompiler, text: str, reason: str | None) -> None:
    if reason is None:
        compiler.compile(ebnf(text))  # the empty text is a text
    else:
        assert reason in refusal(compiler, ebnf(text))


def test_rules_that_double_are_refused_before_they_fill_the_memory(
    compiler: GrammarCompiler,
) -> None:
    text = "root ::= r30\nr0 ::= [ab]\n" + "".join(f"r{i + 1} ::= r{i} r{i}\n" for i in range(30))
    assert "the limit is 100000" in refusal(compiler, ebnf(text))


def test_a_long_chain_of_rules_is_served(vocabulary: Vocabulary, compiler: GrammarCompiler) -> None:
    text = "root ::= r0\n" + "".join(f'r{i} ::= "a" (r{i + 1} | "b") | "c"\n' for i in range(900))
    compiled = compiler.compile(ebnf(text + 'r900 ::= "c"'))
    assert accepts(compiled, vocabulary, "a" * 50 + "b")
    assert stops_at(compiled, vocabulary, "aaba") == 3


def test_which_notation_a_grammar_is_in() -> None:
    for text in ('root ::= "a"', '# x\n  item-1 ::= "a"', 'root\t::="a"'):
        assert is_ebnf(text)
    for text in ('start: "a ::= b"', "start: a\na::x: a", "// a ::= b\nstart: /a/"):
        assert not is_ebnf(text)
