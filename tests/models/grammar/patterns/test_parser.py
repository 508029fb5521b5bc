"""What is read of a pattern is what `re` reads, and what is not served is refused by name."""

from __future__ import annotations

import random
import re
import warnings

import pytest

from models.grammar.patterns.parser import parse_regex
from models.grammar.patterns.tree import Chars, Choice, Node, Repeat, Sequence
from models.grammar.regex import simplified
from models.protocol.errors import UnsupportedGrammar
from tests.cases.regex import ALPHABET, random_pattern

_NOISE = (*"()[]{}*+?|\\^$-,:=!<>#aiLmsuxPNbBAZdDwW019", "(?", "(?P<", "(?#", r"\x", r"\U", "{,")
# What a valid pattern is refused for; syntax errors are Python's own.
_FEATURES = re.compile(
    r"position \d+: ((negative )?look-(ahead|behind)|a back reference|a conditional group"
    r"|an atomic group|flag x|a possessive quantifier|a word boundary"
    r"|an escape that is no character|repeat count \d+ is over)|an anchor .* only supported"
)


def rewritten(node: Node) -> str:
    """A tree without anchors as a pattern of Python's, without flags, on the alphabet."""
    match node:
        case Chars():
            spans = node.ranges
            members = [c for c in ALPHABET if any(low <= ord(c) <= high for low, high in spans)]
            return f"[{''.join(map(re.escape, members))}]" if members else r"[^\s\S]"
        case Sequence():
            return "".join(f"(?:{rewritten(part)})" for part in node.parts)
        case Choice():
            return "|".join(map(rewritten, node.options))
        case Repeat():
            high = "" if node.high is None else node.high
            return f"(?:{rewritten(node.part)}){{{node.low},{high}}}"
        case _:
            raise AssertionError("anchors and look-ahead are resolved before")


def served(pattern: str) -> re.Pattern[str]:
    """What is served for a pattern, for texts of the alphabet."""
    tree = parse_regex(pattern)
    return re.compile(rewritten(simplified(tree, at_start=True, at_end=True)))


def compiled(pattern: str) -> re.Pattern[str] | None:
    """None where it is no pattern of Python's."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # [[ and the like: literal in both
        try:
            return re.compile(pattern)
        except (re.error, ValueError, OverflowError):
            return None


def mutated(pattern: str, rng: random.Random) -> str:
    at = rng.randrange(len(pattern) + 1)
    return pattern[:at] + rng.choice(_NOISE) + pattern[at + rng.randint(0, 1) :]


def test_trees_of_random_patterns_match_what_re_matches() -> None:
    num_served = num_matches = num_refused = num_invalid = 0
    for seed in range(1200):
        rng = random.Random(seed)
        pattern = random_pattern(rng)
        if seed % 3 == 0:
            pattern = mutated(pattern, rng)
        reference = compiled(pattern)
        refusal, ours = "", None
        try:
            ours = served(pattern)
        except UnsupportedGrammar as error:
            refusal = error.message
        if reference is None:
            assert ours is None, pattern
            num_invalid += 1
        elif ours is None:
            assert _FEATURES.match(refusal), pattern
            num_refused += 1
        else:
            num_served += 1
            for _ in range(20):
                text = "".join(rng.choices(ALPHABET, k=rng.randint(0, 4)))
                matches = reference.fullmatch(text) is not None
                num_matches += matches
                assert (ours.fullmatch(text) is not None) == matches, (pattern, text)
    assert num_served > 600
    assert num_matches > 600
    assert num_refused > 50
    assert num_invalid > 100


def test_every_text_is_a_pattern_or_a_short_refusal() -> None:
    rng = random.Random(3)
    noise = (*_NOISE, "(" * 60, "{99999999999}", r"\UFFFFFFFF", r"\777", "(?a)", "(?u)", "\ud800")
    refusals = []
    for _ in range(3000):
        pattern = "".join(rng.choices(noise, k=rng.randint(1, 12)))
        try:
            parse_regex(pattern, is_shared=rng.random() < 0.5)
        except UnsupportedGrammar as refusal:
            refusals.append(refusal.message)
    assert 1000 < len(refusals) < 2900
    assert max(map(len, refusals)) < 200


def test_sets_that_may_mean_something_else_one_day_warn_nobody() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        parse_regex("[[a]&&[b||c]]")


@pytest.mark.parametrize(
    ("pattern", "text"),
    [
        (r"[(?=A\1]", "A"),  # nothing in a set is a feature
        (r"(?#(?=\)\1)a", "a"),  # nor in a comment, which an escaped parenthesis does not end
        (r"\(?=?A", "A"),
        (r"a-?b(?:{}+)?", "ab"),
        (r"\\?b", "b"),
        (r"\101b", "Ab"),  # an octal escape is no back reference
    ],
)
def test_what_only_looks_like_a_feature_is_served(pattern: str, text: str) -> None:
    assert re.fullmatch(pattern, text)
    assert served(pattern).fullmatch(text)
