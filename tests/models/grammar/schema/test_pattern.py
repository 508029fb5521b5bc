"""A schema's `pattern`: what is served matches for Python's `re.search`; the rest is refused."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable

import jsonschema
import pytest

from models.grammar.compiler import GrammarCompiler
from models.grammar.schema.pattern import rust_patterns
from models.protocol.errors import UnsupportedGrammar
from tests.cases.grammar import Vocabulary, json_schema, random_text
from tests.cases.rules import accepts

# What sets may mean one day is Python's to warn of.
pytestmark = pytest.mark.filterwarnings("ignore:Possible (nested )?set:FutureWarning")


# Where Rust, ECMA 262 and Python differ, or may: pattern, texts that match, texts that do not.
MEANINGS: list[tuple[str, list[str], list[str]]] = [
    ("^[^a&&b]$", ["c"], ["a", "b", "&"]),
    ("^[&--]$", ["&", "+", "-"], ["a", "."]),
    ("^[a~~b]$", ["~", "a", "b"], ["c"]),
    ("^[[a]$", ["[", "a"], ["]"]),
    ("^[a||b]$", ["|", "a", "b"], ["c"]),
    (r"^\d$", ["7"], ["\u0667", "x"]),
    (r"^\D$", ["x"], ["7", "\u0667"]),
    (r"^[^\d]$", ["x"], ["7", "\u0667"]),
    (r"^\w$", ["a", "_"], ["\u00e9", "-"]),
    (r"^\W$", ["-"], ["a", "\u00e9"]),
    (r"^\s$", [" ", "\t"], ["\u00a0x", "\ufeff", "\u0085"]),
    (r"^\S$", ["x"], ["\u00a0", "\ufeff", "\u0085", " "]),
    ("^.$", ["x", "\U0001f600"], ["\n", "\r", "\u2028"]),
    ("^a$", ["a"], ["a\n", "ba"]),
    ("b", ["b", "abc", "b\n"], ["a", ""]),
    ("^b", ["b", "bc"], ["ab"]),
    ("b$", ["b", "ab"], ["bc"]),
    ("^a|b$", ["a", "axy", "b", "xyb"], ["xay", "bx"]),
    ("(^|,)a(,|$)", ["a", "a,b", "b,a", "x,a,y"], ["ba", "ab"]),
    ("^(a|b$)", ["a", "ax", "b"], ["bx", "xb"]),
    ("(?i)^k$", ["k", "K"], ["x"]),
    ("^(?:)$", [""], ["a"]),
    ("", ["", "a"], []),
    (r"^\x41\u0042\/\-$", ["AB/-"], ["ab/-"]),
    (r'^["\\]$', ['"', "\\"], ["x"]),
    ("^a{2}$", ["aa"], ["a", "aaa"]),
    ("^a{$", ["a{"], ["a"]),
    ("^a{,$", ["a{,"], ["a"]),
    ("^(?P<x>a)$", ["a"], ["b"]),
    ("(^a|b)c$", ["ac", "bc", "xbc"], ["xac", "ab"]),
    ("^(?=.*[0-9])(?=.*[a-z]).{3,5}$", ["a1x", "x1234"], ["abc", "123", "a1", "a12345"]),
    ("^(?!admin$|root$)[a-z]+$", ["adminx", "a", "roo"], ["admin", "root", ""]),
    (r"^(?!\.)(?!.*\.\.)[a-z.]+$", ["a.b", "a."], [".a", "a..b"]),
    ("a(?!b)", ["a", "ac", "aba"], ["ab", "b"]),
    ("a(?=b|$)", ["a", "ab", "ca"], ["ac"]),
    (r"\bcat\b", ["cat", "a cat!", "(cat)"], ["cats", "concat", "\u00e9cat"]),
    (r"a\Bb", ["ab", "xaby"], ["a b"]),
    (r"^(?!\w)", ["-a", ""], ["a", "\u00e9"]),
    (r"^(?![-+.]*$)[+-]?\d*\.?\d*$", ["1", "-1.5", ".5", "5."], ["", "-", ".", "-.", "a"]),
    ("^(?!a$)", ["b", "ab", ""], ["a", "a\n"]),
]
# What ECMA 262 spells in another way than Python, which cannot read it.
ECMA: list[tuple[str, list[str], list[str]]] = [
    (r"^(?<year>\d{4})-(?<month>\d\d)$", ["2026-11"], ["2026"]),
    (r"^\p{L}+$", ["a\u00e9\u4e2d"], ["a1", ""]),
    (r"^\p{Lu}\P{L}$", ["A1", "\u00c91"], ["a1", "AB"]),
    (r"^[\p{Letter}\d]+$", ["a1"], ["-"]),
    (r"^[\w-.]+$", ["a-b.c"], ["a b"]),
    (r"^[a-\d-z]$", ["a", "-", "1", "z"], ["b"]),
    (r"^\u{1F600}\ud83d\ude00$", ["\U0001f600\U0001f600"], ["\U0001f600"]),
    (r"^\cJ$", ["\n"], ["J"]),
]


@pytest.mark.parametrize("case", [*MEANINGS, *ECMA], ids=lambda case: repr(case[0]))
def test_patterns_mean_what_validators_read(
    taken: Callable[..., list[str]], case: tuple[str, list[str], list[str]]
) -> None:
    pattern, good, bad = case
    written = {json.dumps(text, ensure_ascii=False): text for text in [*good, *bad]}
    grammar = json_schema({"type": "string", "pattern": pattern})
    assert [written[text] for text in taken(grammar, list(written))] == good
    if case in MEANINGS:
        assert all(re.search(pattern, text) for text in good)


@pytest.mark.parametrize(
    ("pattern", "part"),
    [
        (r"\Aa", r"position 0: an anchor that not all validators read alike (\A)"),
        (r"a\Z", "position 1: an anchor that not all"),
        ("[]a]", "position 0: a set that begins with ]"),
        ("[^]a]", "position 0: a set that begins with ]"),
        (r"a[^\]{,2}]{,3}", "position 10: a repeat without its least number ({,3})"),
        (r"\a", "position 0: an escape that not all validators read alike"),
        (r"[\U0001F600]", "position 1: an escape that not all"),
        (r"\N{BULLET}", "position 0: an escape that not all"),
        (r"\p{Script=Greek}", "position 0: bad escape"),
        (r"(?<x>a)(?<=b)", "position 7: look-behind"),
        (r"\u{1100}\u{x}", "incomplete escape"),
        ("(?:(?!a)b)*", "look-ahead in a repeat of more than 12 times"),
        ("(?=a)b", "no text matches this pattern"),
        ("^(?!.*a.{9}b)x", "states, the limit"),
        (r"(a)\1", "position 3: a back reference"),
        (r"a\bb", "no text matches"),
        ("a^b", "no text matches"),
        ("a$b", "no text matches"),
        ("(^a)*", "look-ahead in a repeat of more than 12 times"),
        ("a++", "position 1: a possessive quantifier"),
        ("[a", "position 0: unterminated"),
        (r"^\x01$", "no text matches"),
        (r"[^\x00-\uffff\U00010000-\U0010ffff]", "an escape that not all"),
        ("((a{1,1000}){1,1000}){1,1000}", "the limit is 100000"),
        ("x" * 5000, "5000 bytes, the limit is 4096"),
    ],
)
def test_refusals_name_the_place_and_the_feature(
    compiler: GrammarCompiler, pattern: str, part: str
) -> None:
    for schema, path in (
        ({"items": {"pattern": pattern}}, "$.items.pattern: "),
        ({"patternProperties": {pattern: {}}}, "$.patternProperties"),
    ):
        with pytest.raises(UnsupportedGrammar) as caught:
            compiler.compile(json_schema(schema))
        assert caught.value.message.startswith(path)
        assert part in caught.value.message


def test_complaints_of_the_compiler_show_the_pattern_as_it_was_written(
    compiler: GrammarCompiler,
) -> None:
    schema = {"type": "object", "patternProperties": {"^a": {"const": 1}, "b": {"const": 2}}}
    with pytest.raises(UnsupportedGrammar, match=r"/\^a/ and /b/ are not disjoint"):
        compiler.compile(json_schema(schema))
    schema = {"type": "object", "patternProperties": {"^a": {"const": 1}, "^(?:a)": {"const": 2}}}
    with pytest.raises(UnsupportedGrammar, match=r"patternProperties: two of the patterns"):
        compiler.compile(json_schema(schema))


def a_pattern(rng: random.Random, depth: int = 3) -> str:
    """A random pattern of what Python can read; maybe not of what is served."""
    kind = rng.randrange(9) if depth else rng.randrange(5)
    if kind < 2:
        return rng.choice([*"abcK7-&~ _.", r"\.", r"\[", r"\n", r"\t", "\u00e9", r"\x41"])
    if kind < 4:
        return rng.choice([r"\d", r"\w", r"\s", r"\D", r"\W", r"\S"])
    if kind == 4:
        members = "".join(
            rng.choice(["a", "b-d", r"\d", r"\W", "&&", "~~", "0-9", "[", r"\]", r"\-", "K", "."])
            for _ in range(rng.randint(1, 4))
        )
        return f"[{rng.choice(['', '^'])}{members}]"
    inner = a_pattern(rng, depth - 1)
    if kind == 5:
        return f"(?:{inner}){rng.choice(['*', '+', '?', '{2}', '{1,3}', '{0,2}?', '{2,}'])}"
    if kind == 6:
        return f"(?:{inner}|{a_pattern(rng, depth - 1)})"
    if kind == 7:
        return f"{rng.choice(['^', '', '(?:^|,)'])}{inner}{rng.choice(['$', '', '(?:,|$)'])}"
    return inner + a_pattern(rng, depth - 1)


def test_what_masks_allow_matches_in_python(
    vocabulary: Vocabulary, compiler: GrammarCompiler
) -> None:
    rng = random.Random(11)
    num_served = 0
    for _ in range(120):
        pattern = rng.choice(["", "(?i)"]) + a_pattern(rng)
        schema = {"type": "string", "pattern": pattern}
        try:
            compiled = compiler.compile(json_schema(schema))
        except UnsupportedGrammar:
            continue
        num_served += 1
        for _ in range(2):
            try:
                ids = random_text(compiled, vocabulary, rng, max_tokens=120)
            except RuntimeError:  # too long: masks may allow any text before what has to come
                continue
            jsonschema.validate(json.loads(vocabulary.decode(ids)), schema)
    assert num_served > 60


def test_what_both_read_alike_is_served_whole(
    vocabulary: Vocabulary, compiler: GrammarCompiler
) -> None:
    """No text is lost, on an alphabet where Python's sets and ECMA 262's are the same."""
    rng = random.Random(12)
    num_served = 0
    for _ in range(150):
        pattern = a_pattern(rng)
        try:
            rust_patterns(pattern)
        except UnsupportedGrammar:
            continue
        num_served += 1
        compiled = compiler.compile(json_schema({"type": "string", "pattern": pattern}))
        for _ in range(12):
            text = "".join(rng.choice("abcdK7-&~[] _.,A") for _ in range(rng.randint(0, 5)))
            is_taken = accepts(compiled, vocabulary, json.dumps(text))
            assert is_taken == bool(re.search(pattern, text)), (pattern, text)
    assert num_served > 60
