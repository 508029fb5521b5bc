"""Grammars with rules for tests: random ones with their words counted out, and how far texts go."""

from __future__ import annotations

import random

import pytest

from models.grammar.compiler import GrammarCompiler
from models.grammar.state import CompiledGrammar
from models.protocol.errors import UnsupportedGrammar
from models.protocol.messages import Grammar
from tests.cases.grammar import Vocabulary

# As people write it: whitespace is part of the rules, strings and numbers are built of characters.
JSON_EBNF = r"""
root   ::= object
value  ::= object | array | string | number | ("true" | "false" | "null") ws
object ::= "{" ws ( member ("," ws member)* )? "}" ws
member ::= string ":" ws value
array  ::= "[" ws ( value ("," ws value)* )? "]" ws
string ::= "\"" ( [^"\\\x7F\x00-\x1F] | "\\" (["\\bfnrt] | "u" [0-9a-f]{4}) )* "\"" ws
number ::= "-"? ("0" | [1-9] [0-9]{0,15}) ("." [0-9]+)? ([eE] [-+]? [0-9]{1,2})? ws
ws     ::= | " " | "\n" [ \t]{0,8}   # never much of it
"""

# A tree: a letter, a rule's number, or an operator with what it holds.
_Tree = str | int | tuple[str, list["_Tree"]]


class RandomGrammar:
    """A random grammar over a few letters, with its words by plain counting."""

    def __init__(self, rng: random.Random, letters: str, num_rules: int) -> None:
        self._letters = letters
        self._rules = [self._tree(rng, num_rules, 3) for _ in range(num_rules)]

    def text(self) -> str:
        """The grammar in EBNF."""
        names = ["root", *(f"r{i}" for i in range(1, len(self._rules)))]
        lines = (f"{n} ::= {_spelt(t, names)}" for n, t in zip(names, self._rules, strict=True))
        return "\n".join(lines)

    def ends(self) -> bool:
        """Whether every rule that the first leads to has a word, however long."""
        ending: set[int] = set()
        reached = {0}
        for _ in self._rules:
            ending = {i for i, tree in enumerate(self._rules) if _ends(tree, ending)}
            reached |= {rule for i in reached for rule in _rules_in(self._rules[i])}
        return reached <= ending

    def words(self, longest: int) -> set[str]:
        """All texts of at most `longest` letters that obey the first rule."""
        found: list[set[str]] = [set() for _ in self._rules]
        while True:
            grown = [_words(tree, found, longest) for tree in self._rules]
            if grown == found:
                return found[0]
            found = grown

    def _tree(self, rng: random.Random, num_rules: int, depth: int) -> _Tree:
        if depth == 0 or rng.random() < 0.2:
            is_rule = rng.random() < 0.35
            return rng.randrange(num_rules) if is_rule else rng.choice(self._letters)
        kind = rng.choice(["sequence", "sequence", "choice", "choice", "*", "+", "?"])
        count = 1 if kind in "*+?" else rng.randint(2, 3)
        return kind, [self._tree(rng, num_rules, depth - 1) for _ in range(count)]


def _spelt(tree: _Tree, names: list[str]) -> str:
    if isinstance(tree, int):
        return names[tree]
    if isinstance(tree, str):
        return f'"{tree}"'
    kind, parts = tree
    inner = (" | " if kind == "choice" else " ").join(_spelt(part, names) for part in parts)
    return f"({inner}){kind if kind in '*+?' else ''}"


def _ends(tree: _Tree, ending: set[int]) -> bool:
    if isinstance(tree, tuple):
        kind, parts = tree
        inner = [_ends(part, ending) for part in parts]
        return kind in "*?" or (any(inner) if kind == "choice" else all(inner))
    return isinstance(tree, str) or tree in ending


def _rules_in(tree: _Tree) -> set[int]:
    if isinstance(tree, tuple):
        return set().union(*map(_rules_in, tree[1]))
    return {tree} if isinstance(tree, int) else set()


def _words(tree: _Tree, found: list[set[str]], longest: int) -> set[str]:
    if isinstance(tree, int):
        return found[tree]
    if isinstance(tree, str):
        return {tree}
    kind, parts = tree
    sets = [_words(part, found, longest) for part in parts]
    if kind == "choice":
        return set().union(*sets)
    if kind == "sequence":
        joined = {""}
        for words in sets:
            joined = _chained(joined, words, longest)
        return joined
    once = sets[0]
    if kind == "?":
        return once | {""}
    words = {""}
    while (more := words | _chained(words, once, longest)) != words:
        words = more
    return words if kind == "*" or "" in once else _chained(words, once, longest)


def _chained(first: set[str], second: set[str], longest: int) -> set[str]:
    return {a + b for a in first for b in second if len(a) + len(b) <= longest}


def stops_at(compiled: CompiledGrammar, vocabulary: Vocabulary, text: str) -> int | None:
    """At which byte the grammar leaves a text that is fed byte by byte; None: it takes all."""
    state = compiled.start()
    tokenizer = vocabulary.tokenizer
    chars = _byte_chars()
    for at, byte in enumerate(text.encode()):
        token = tokenizer.token_to_id(chars[byte])
        assert token is not None
        if not state.advance(token):
            return at
    return None


def accepts(compiled: CompiledGrammar, vocabulary: Vocabulary, text: str) -> bool:
    """Whether a text, in the tokenizer's own tokens, is a whole one."""
    state = compiled.start()
    return all(state.advance(token) for token in vocabulary.encode(text)) and state.is_complete


def refusal(compiler: GrammarCompiler, grammar: Grammar) -> str:
    """Why a grammar is refused."""
    with pytest.raises(UnsupportedGrammar) as caught:
        compiler.compile(grammar)
    return caught.value.message


def _byte_chars() -> dict[int, str]:
    """How byte-level tokenizers write each byte (GPT-2's table)."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = (byte for byte in range(256) if byte not in plain)
    return {byte: chr(byte) for byte in plain} | {b: chr(256 + i) for i, b in enumerate(others)}
