"""Patterns mean what `re.fullmatch` means by them, or are refused by feature and position."""

from __future__ import annotations

import random
import re
from collections.abc import Callable

import pytest

from models.grammar.charsets import LAST, category, complement, ignore_case, union
from models.grammar.compiler import GrammarCompiler
from models.protocol.errors import UnsupportedGrammar
from models.protocol.messages import Grammar
from tests.cases.grammar import Vocabulary, allowed
from tests.cases.regex import Comparison, compare, random_pattern


def regex(pattern: str) -> Grammar:
    return Grammar(kind="regex", text=pattern)


@pytest.mark.parametrize("block", range(4))
def test_random_patterns_mean_the_same_as_in_re(
    vocabulary: Vocabulary, compiler: GrammarCompiler, block: int
) -> None:
    found = Comparison()
    for seed in range(block * 250, (block + 1) * 250):
        rng = random.Random(seed)
        compare(random_pattern(rng), compiler, vocabulary, rng, found)
    assert found.differences == []
    assert found.num_served > 100
    assert found.num_matches > 500
    assert found.num_texts - found.num_matches > 500


@pytest.mark.filterwarnings("ignore:Possible set:FutureWarning")  # of `re`: && is two & here
@pytest.mark.parametrize(
    ("pattern", "matches", "others"),
    [
        ("a|ab", ["a", "ab"], ["", "b", "aab"]),
        (r"^(?:\A)ab$\Z", ["ab"], ["ab\n", "\nab"]),
        ("^a|b$", ["a", "b"], ["ab"]),
        ("a*?b??", ["", "aaa", "aab"], ["bb"]),
        (".", ["a", "\r", "\x00", "\u2028"], ["\n", "ab", ""]),
        ("(?s:.).", ["\na", "aa"], ["a\n"]),
        (r"\d", ["3", "\u0663"], ["a", "\u00b2"]),
        (r"(?a)\d\w\s", ["3a ", "00\n"], ["\u0663a ", "3\u00e9 ", "3a\u00a0"]),
        (r"(?a:\w)\w", ["a\u00e9"], ["\u00e9a"]),
        (r"[^\W\d_]", ["a", "\u00e9", "\u65e5"], ["_", "1", "-"]),
        ("(?i)stra\u00dfe", ["STRA\u1e9eE", "stra\u00dfe"], ["strasse"]),
        ("(?i)k", ["k", "K", "\u212a"], ["\u0138"]),
        ("(?ai)k", ["k", "K"], ["\u212a"]),
        ("(?i:a)b(?i:(?-i:c))", ["Abc", "abc"], ["ABc", "abC"]),
        ("(?i)[^a-c]", ["d", "\u00e9"], ["B", "b"]),
        ("x{2}y{,2}z{1,}", ["xxz", "xxyyzz"], ["xz", "xxyyyz"]),
        ("a{,}b{}c{x}d{1", ["aab{}c{x}d{1", "b{}c{x}d{1"], ["b"]),
        (r"\x41\u0042\U00000043\103\0", ["ABCC\x00"], ["ABC"]),
        (r"\N{DIGIT ONE}[\N{BULLET}]", ["1\u2022"], ["1"]),
        (r"[]a\]\b\-^&&||~~]", list("]a\b-^&|~"), ["b", "\\"]),
        (r"(?P<year>\d{4})(?#the year)+", ["2024", "20242025"], ["2024x"]),
        ("/(a|)/\"'\\\\", ["/a/\"'\\", "//\"'\\"], ["/"]),
        ("\U0001f600+[\U0001f600-\U0001f602]", ["\U0001f600\U0001f602"], ["\U0001f600"]),
        (r"(?:a|[^\s\S])b|(?:[^\s\S])*c", ["ab", "c"], ["b"]),
    ],
)
def test_chosen_patterns(
    taken: Callable[..., list[str]], pattern: str, matches: list[str], others: list[str]
) -> None:
    texts = [*matches, *others]
    assert taken(regex(pattern), texts) == matches
    assert [text for text in texts if re.fullmatch(pattern, text)] == matches


@pytest.mark.parametrize(
    ("pattern", "part"),
    [
        ("ab(?=c)", "no text matches"),
        ("(?:(?!c)a)*b", "look-ahead in a repeat of more than 12 times"),
        ("a(?<=a)b", "position 1: look-behind ((?<=)"),
        ("a(?<!a)b", "position 1: negative look-behind ((?<!)"),
        (r"(a)\1", r"position 3: a back reference (\1)"),
        ("(?P<x>a)(?P=x)", "position 8: a back reference ((?P=)"),
        ("(a)?(?(1)b|c)", "position 4: a conditional group ((?()"),
        ("(?>a)b", "position 0: an atomic group ((?>)"),
        ("a*+b", "position 1: a possessive quantifier (*+)"),
        ("a{2}+b", "position 1: a possessive quantifier ({2}+)"),
        (r"a\bb", "no text matches"),
        ("(?x) a b", "position 0: flag x ((?x))"),
        ("a(?-x:(?x:b))", "position 6: flag x ((?x:)"),
        ("a^b", "an anchor (^) is only supported at the start of the text"),
        ("(?m)a$\nb", "an anchor ($) is only supported at the end of the text"),
        (r"a*\Ab", r"an anchor (\A)"),
        ("(a$|b)c", "an anchor ($)"),
        ("(?:^a)+", "an anchor (^)"),
        ("a{10001}", "position 1: repeat count 10001 is over the limit of 10000"),
        ("a{3,99999999999}", "position 1: repeat count 99999999999 is over"),
        ("(?:a{1000}b){1000}", "1001000 characters with its repeats written out"),
        ("x" * 4097, "has 4097 bytes, the limit is 4096"),
        ("\u00e9" * 2049, "has 4098 bytes, the limit is 4096"),
        ("(" * 49 + "a" + ")" * 49, "position 48: groups nest more than 48 deep"),
        ("", "the pattern is empty"),
        ("(?:)|a{0}|^$", "only the empty text"),
        (r"a[^\s\S]", "no text matches"),
        (r"\ud800", r"position 0: an escape that is no character (\ud800)"),
        ("\ud800", "no text matches"),
        (r"[a\U00110000]", r"position 2: an escape that is no character (\U00110000)"),
        ("(?L)a", "position 3: bad inline flags: cannot use 'L' flag with a str pattern"),
        ("(?au)a", "position 4: bad inline flags"),
        ("(?a-u:b)", "position 5: bad inline flags: cannot turn off"),
        ("(?i-i:b)", "position 5: bad inline flags: flag turned on and off"),
        ("a(?i)b", "position 1: global flags not at the start"),
        ("(?a)(?u)b", "ASCII and UNICODE flags are incompatible"),
        ("(?i", "position 3: missing -, : or )"),
        ("(?y)", "position 1: unknown extension ?y"),
        ("(?P<1>a)", "bad character in group name '1'"),
        ("(?P<a>a)(?P<a>b)", "position 12: redefinition of group name 'a'"),
        ("(?P<a", "missing >"),
        ("a{" + "9" * 4000 + "}", "position 1: repeat count 999"),
        ("(?P<" + "<" * 4000 + ">a)", "position 4: bad character in group name '<<<"),
        ("(?#a", "unterminated comment"),
        ("(a", "position 0: missing ), unterminated subpattern"),
        ("a)b", "position 1: unbalanced parenthesis"),
        ("[a(?=", "position 0: unterminated character set"),
        ("[z-a]", "position 1: bad character range z-a"),
        (r"[\w-z]", r"position 1: bad character range \w-z"),
        ("*a", "position 0: nothing to repeat"),
        ("^*", "position 1: nothing to repeat"),
        ("a**", "position 2: multiple repeat"),
        ("a{2,1}", "position 2: min repeat greater than max repeat"),
        ("a\\", "position 1: bad escape (end of pattern)"),
        (r"\q", r"position 0: bad escape \q"),
        (r"\x4", r"position 0: incomplete escape \x4"),
        (r"\477", r"position 0: octal escape value \477"),
        (r"\N{nope}", "position 0: undefined character name 'nope'"),
        (r"\Nx", "position 2: missing {"),
    ],
)
def test_refusals_name_feature_and_position(
    compiler: GrammarCompiler, pattern: str, part: str
) -> None:
    with pytest.raises(UnsupportedGrammar) as caught:
        compiler.compile(regex(pattern))
    assert part in caught.value.message
    assert len(caught.value.message) < 200
    assert caught.value.param is None


def test_the_largest_allowed_patterns_compile(compiler: GrammarCompiler) -> None:
    for pattern in (
        "abcdefgh" * 512,
        "(" * 48 + "a" + ")*" * 48,
        r"\w" * 2048,
        "(?i)" + "[a-z]" * 800,
        "(?:(?:[a-z]{1,100}){1,10}){1,100}",
        "|".join(str(i) for i in range(1000)),
        "a{10000}b{0,10000}c{10000,}",
    ):
        assert allowed(compiler.compile(regex(pattern)).start().row())


def members(ranges: tuple[tuple[int, int], ...]) -> set[int]:
    return {code for low, high in ranges for code in range(low, high + 1)}


def test_sets_of_characters_are_those_of_re() -> None:
    text = "".join(chr(code) for code in range(LAST + 1) if not 0xD800 <= code <= 0xDFFF)
    for letter in "dDwWsS":
        for flags in (re.UNICODE, re.ASCII):
            expected = set(map(ord, re.findall(rf"\{letter}", text, flags)))
            assert members(category(letter, is_ascii=flags == re.ASCII)) == expected
    assert union([(5, 9), (1, 2)], [(3, 4), (8, 20)]) == ((1, 20),)
    assert union([(0xD000, 0xE000)]) == ((0xD000, 0xD7FF), (0xE000, 0xE000))
    assert complement(()) == ((0, 0xD7FF), (0xE000, LAST))
    assert complement(complement(((3, 7), (10, 10)))) == ((3, 7), (10, 10))


# Left out: a range beyond the first plane with re.ASCII, whose case CPython ignores all the same.
@pytest.mark.parametrize(
    ("source", "flags"),
    [
        *((s, re.ASCII) for s in ("[k]", "[Z-c]", "[\u00df-\u0180]")),
        *((s, re.UNICODE) for s in ("[k]", "[Z-c]", "[\u00df-\u0180]", "[\u0390-\u03ff]")),
        ("[\U00010400-\U00010410]", re.UNICODE),
    ],
)
def test_sets_without_case_are_those_of_re(source: str, flags: re.RegexFlag) -> None:
    text = "".join(chr(code) for code in range(0x30000) if not 0xD800 <= code <= 0xDFFF)
    plain = union([(ord(source[1]), ord(source[-2]))])
    expected = set(map(ord, re.findall(source, text, flags | re.IGNORECASE)))
    assert members(ignore_case(plain, is_ascii=flags == re.ASCII)) == expected
