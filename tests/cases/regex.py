"""Random patterns and texts, and the comparison of a compiled pattern with Python's `re`."""

from __future__ import annotations

import random
import re
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, field

from models.grammar.compiler import GrammarCompiler
from models.grammar.state import GrammarState
from models.protocol.errors import UnsupportedGrammar
from models.protocol.messages import Grammar
from tests.cases.grammar import Vocabulary, allowed

ALPHABET = "abAB1_ -\n.kKsß\u00e9\u00c9\u0663\u017f\u212a\u00df\u1e9e\u65e5\U0001f600\x00\x1c\u00a0"
_ATOMS = (
    *("a", "b", "A", "1", " ", "k", "s", "\u00df", "\u00e9", "\u65e5", "\U0001f600", "_", "-"),
    *(r"\d", r"\D", r"\w", r"\W", r"\s", r"\S", ".", r"\n", r"\.", r"\x61", r"\u00e9", r"\141"),
    *(r"\0", r"\t", r"\-", r"\ ", r"\N{DIGIT ONE}", r"\U0001f600", "{", "}", "]", "{a", "{,a}"),
)
_UNSERVED = (r"\b", r"\B", r"\1", "(?=a)", "(?!a)", "(?<=a)", "(?<!b)", "(?>a|ab)", "a*+", "(?x:a)")
_MEMBERS = (
    *("a", "b", "k", "s", "A", "1", "_", "-", "^", ".", "\u00e9", "\u65e5", "[", "&&", "||", "--"),
    *(r"\d", r"\D", r"\w", r"\W", r"\s", r"\S", r"\n", r"\]", r"\\", r"\b", r"\0", r"\x41", r"\-"),
    *(
        "a-c",
        "A-Z",
        "0-9",
        "\u00df-\u017f",
        " -~",
        "k-s",
        "\u2100-\u2200",
        r"\x00-\x1f",
        "a-\u212b",
    ),
)
_QUANTIFIERS = (
    *("*", "+", "?", "*?", "+?", "??", "{2}", "{0,2}", "{1,3}", "{,2}", "{1,}", "{0}", "{1,2}?"),
    *("{,}", "{2,1}", "{}", "{a}"),
)
_OPENINGS = ("(", "(?:", "(?P<n{}>", "(?i:", "(?s:", "(?a:", "(?-i:", "(?i-s:", "(?u:", "(?m:")
_FLAGS = ("", "", "", "", "(?i)", "(?a)", "(?s)", "(?ai)", "(?is)", "(?m)", "(?#x)", "(?i)(?s)")


def random_pattern(rng: random.Random) -> str:
    """A pattern of Python's syntax; one in ten has something broken or unserved in it."""
    text = _random_options(rng, iter(range(1000)), 0)
    if rng.random() < 0.2:
        text = rng.choice(("^", r"\A")) + text
    if rng.random() < 0.2:
        text += rng.choice(("$", r"\Z"))
    if rng.random() < 0.05:
        cut = rng.randrange(len(text) + 1)
        text = text[:cut] + rng.choice("()[]{}*+?|\\^$") + text[cut:]
    return rng.choice(_FLAGS) + text


def _random_options(rng: random.Random, names: Iterator[int], depth: int) -> str:
    num_options = rng.choice((1, 1, 1, 2, 3))
    return "|".join(_random_sequence(rng, names, depth) for _ in range(num_options))


def _random_sequence(rng: random.Random, names: Iterator[int], depth: int) -> str:
    parts = []
    for _ in range(rng.randint(0 if depth else 1, 4)):
        parts.append(_random_part(rng, names, depth))
        if rng.random() < 0.3:
            parts.append(rng.choice(_QUANTIFIERS))
    return "".join(parts)


def _random_part(rng: random.Random, names: Iterator[int], depth: int) -> str:
    roll = rng.random()
    if roll < 0.02:
        return rng.choice(_UNSERVED)
    if roll < 0.25 and depth < 3:
        opening = rng.choice(_OPENINGS).format(next(names))
        return f"{opening}{_random_options(rng, names, depth + 1)})"
    if roll < 0.45:
        members = "".join(rng.choices(_MEMBERS, k=rng.randint(1, 4)))
        return f"[{rng.choice(('', '', '^'))}{members}]"
    return rng.choice(_ATOMS)


@dataclass
class Comparison:
    """What a run of comparisons has seen; `differences` must stay empty."""

    num_served: int = 0
    num_refused: int = 0  # of those that Python accepts
    num_matches: int = 0
    num_texts: int = 0
    differences: list[str] = field(default_factory=list)


def compare(
    pattern: str,
    compiler: GrammarCompiler,
    vocabulary: Vocabulary,
    rng: random.Random,
    found: Comparison,
) -> None:
    """Compare one pattern on random texts and on texts that random walks produce."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # [[ and the like: literal in both
        try:
            reference = re.compile(pattern)
        except (re.error, OverflowError):
            reference = None
    try:
        compiled = compiler.compile(Grammar(kind="regex", text=pattern))
    except UnsupportedGrammar:
        found.num_refused += reference is not None
        return
    if reference is None:
        found.differences.append(f"{pattern!r} is no pattern of Python's")
        return
    found.num_served += 1
    texts = ["", *("".join(rng.choices(ALPHABET, k=rng.randint(1, 5))) for _ in range(8))]
    for _ in range(4):
        walked, is_whole = _walk(compiled.start(), vocabulary, rng)
        if is_whole:
            texts += [walked, _mutated(walked, rng)]
    for text in texts:
        state = compiled.start()
        taken = all(state.advance(token) for token in vocabulary.encode(text))
        matches = taken and state.is_complete
        found.num_texts += 1
        found.num_matches += matches
        if matches != bool(reference.fullmatch(text)):
            found.differences.append(f"{pattern!r} on {text!r}: {matches} here")


def _walk(state: GrammarState, vocabulary: Vocabulary, rng: random.Random) -> tuple[str, bool]:
    ids: list[int] = []
    while len(ids) < 12:
        choices = allowed(state.row())
        texts = [i for i in choices if i not in vocabulary.eos_ids]
        if not texts or (len(texts) < len(choices) and rng.random() < 0.3):
            break
        token = rng.choice(texts)
        assert state.advance(token)
        ids.append(token)
    return vocabulary.decode(ids), state.is_complete


def _mutated(text: str, rng: random.Random) -> str:
    at = rng.randrange(len(text) + 1)
    return text[:at] + rng.choice(("", *ALPHABET)) + text[at + rng.randint(0, 1) :]
