r"""Reads EBNF, as llama.cpp (GBNF) and XGrammar write it, into rules.

    root ::= item ("," item)*     # what the whole text obeys
    item ::= [a-z]+ | "(" root ")"

A rule goes on until the next name with `::=`. Repeats are `*`, `+`, `?`, `{2}`, `{2,}`, `{2,5}`.
Texts are "..." or '...', sets [a-z] or [^a-z], and `.` is any character at all. Escapes are `\n \t
\r \f \b \0 \\ \" \' \/ \[ \] \- \^ \xHH \uHHHH \UHHHHHHHH`. Other parts of these dialects (tokens
by number or name, look-ahead, macros) are refused by name and place. Standard library only.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import NoReturn

from models.grammar.charsets import LAST, Ranges, complement, union
from models.grammar.limits import MAX_DEPTH, MAX_REPEAT, MAX_RULES, refuse
from models.grammar.patterns.tree import Chars
from models.grammar.rules.lark_tokens import refuse_at
from models.grammar.rules.tree import (
    EMPTY,
    Expr,
    Ref,
    Regular,
    Rules,
    choice,
    literal_text,
    repeated,
    sequence,
)

START = "root"
_TOKEN = re.compile(
    r"""
    (?P<space> \s+ | \#[^\n]* )
    | (?P<define> ::= )
    | (?P<string> "(?: [^"\\\n] | \\. )*" | '(?: [^'\\\n] | \\. )*' )
    | (?P<set> \[ (?: [^\]\\\n] | \\. )* \] )
    | (?P<name> [A-Za-z_] [A-Za-z0-9_.-]* )
    | (?P<repeat> [*+?] | \{ \s* [0-9]* \s* (?: , \s* [0-9]* \s* )? \} )
    | (?P<lookahead> \( [=!] )
    | (?P<sign> [|().] )
    | (?P<token> !? < [^<>\s]* > )
    """,
    re.VERBOSE,
)
_CHAR = re.compile(
    r"\\(?:x([0-9a-fA-F]{2})|u([0-9a-fA-F]{4})|U([0-9a-fA-F]{8})|(.))|(.)", re.DOTALL
)
_SHORT = {"n": "\n", "t": "\t", "r": "\r", "f": "\f", "b": "\b", "0": "\0"}
_SELF = "\\\"'/[]-^"
_ANY = Regular(Chars(((0, 0xD7FF), (0xE000, LAST))), 1, 1)


_DEFINES = re.compile(r"^[ \t]*[A-Za-z_][A-Za-z0-9_.-]*[ \t]*::=", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class _Token:
    kind: str
    text: str
    start: int


def is_ebnf(text: str) -> bool:
    """Return whether a grammar is EBNF rather than Lark: a line begins with `name ::=`."""
    return _DEFINES.search(text) is not None


def parse_ebnf(text: str) -> Rules:
    """Return the rules of a grammar; `START` is the one that the whole text obeys.

    Raises:
        UnsupportedGrammar: with the line and the column.
    """
    return _Parser(text).rules()


class _Parser:
    def __init__(self, text: str) -> None:
        self._text = text
        self._tokens = _cut(text)
        self._at = 0
        self._depth = 0
        self._used: dict[str, int] = {}  # where a rule is referred to first

    def rules(self) -> Rules:
        rules: Rules = {}
        while self._at < len(self._tokens):
            token = self._tokens[self._at]
            if not self._begins_rule():
                self._refuse(token, f"{token.text[:40]!r} where a rule must begin: name ::= ...")
            if token.text in rules:
                self._refuse(token, f"the rule {token.text[:80]} is defined twice")
            if len(rules) == MAX_RULES:
                self._refuse(token, f"more than {MAX_RULES} rules, which is the limit")
            self._at += 2
            rules[token.text] = self._choice()
        for name, at in self._used.items():
            if name not in rules:
                refuse_at(self._text, at, f"the rule {name[:80]} is not defined")
        if START not in rules:
            refuse(f"no rule is named {START}")
        return rules

    def _begins_rule(self) -> bool:
        following = self._tokens[self._at : self._at + 2]
        return [token.kind for token in following] == ["name", "define"]

    def _choice(self) -> Expr:
        options = [self._sequence()]
        while self._at < len(self._tokens) and self._tokens[self._at].text == "|":
            self._at += 1
            options.append(self._sequence())
        return choice(options)

    def _sequence(self) -> Expr:
        parts: list[Expr] = []
        while self._at < len(self._tokens) and not self._begins_rule():
            token = self._tokens[self._at]
            if token.text in ("|", ")"):
                break
            self._at += 1
            part = self._part(token)
            while self._at < len(self._tokens) and self._tokens[self._at].kind == "repeat":
                part = self._repeat(part, self._tokens[self._at])
                self._at += 1
            parts.append(part)
        return sequence(parts)

    def _part(self, token: _Token) -> Expr:
        match token.kind:
            case "string":
                return literal_text("".join(self._chars(token, token.text[1:-1])))
            case "set":
                return Regular(Chars(self._set(token)), 1, 1)
            case "name":
                self._used.setdefault(token.text, token.start)
                return Ref(token.text)
            case "token":
                self._refuse(token, f"a token ({token.text[:40]}) is not supported")
            case "lookahead":
                self._refuse(token, f"look-ahead ({token.text}) is not supported")
            case "sign" if token.text == ".":
                return _ANY
            case "sign" if token.text == "(":
                return self._group(token)
            case _:
                self._refuse(token, f"{token.text[:40]!r} has nothing before it")

    def _group(self, opening: _Token) -> Expr:
        self._depth += 1
        if self._depth > MAX_DEPTH:
            self._refuse(opening, f"groups nest more than {MAX_DEPTH} deep, which is the limit")
        inner = self._choice()
        if self._at == len(self._tokens) or self._tokens[self._at].text != ")":
            self._refuse(opening, "this parenthesis is never closed")
        self._at += 1
        self._depth -= 1
        return inner

    def _repeat(self, part: Expr, token: _Token) -> Expr:
        known: dict[str, tuple[int, int | None]] = {"*": (0, None), "+": (1, None), "?": (0, 1)}
        if token.text in known:
            return repeated(part, *known[token.text])
        least, comma, most = token.text.strip("{} \t\r\n").partition(",")
        counts = [count.strip()[:9] for count in (least, most)]
        low = int(counts[0] or 0)
        high = (int(counts[1]) if counts[1] else None) if comma else low
        if not counts[0] and not counts[1]:
            self._refuse(token, "a repeat needs a number")
        count = max(low, high or 0)
        if count > MAX_REPEAT:
            self._refuse(token, f"repeat count {count} is over the limit of {MAX_REPEAT}")
        if high is not None and high < low:
            self._refuse(token, "the least number of a repeat is above its most")
        return repeated(part, low, high) if high != 0 else EMPTY

    def _set(self, token: _Token) -> Ranges:
        inner = token.text[1:-1]
        is_negated = inner.startswith("^")
        chars = self._chars(token, inner[is_negated:], is_negated)
        plain = [found[5] for found in _CHAR.finditer(inner[is_negated:])]  # None: an escape
        ranges: list[tuple[int, int]] = []
        at = 0
        while at < len(chars):
            low = high = ord(chars[at])
            if at + 2 < len(chars) and plain[at + 1] == "-":
                high = ord(chars[at + 2])
                at += 2
            if high < low:
                self._refuse(token, f"a range ends before it begins in {token.text[:40]}")
            ranges.append((low, high))
            at += 1
        found = complement(union(ranges)) if is_negated else union(ranges)
        if not found:
            self._refuse(token, "no character is in this set")
        return found

    def _chars(self, token: _Token, inner: str, skip: int = 0) -> list[str]:
        chars = []
        for found in _CHAR.finditer(inner):
            digits = found[1] or found[2] or found[3]
            if digits:
                char = chr(code) if (code := int(digits, 16)) <= LAST else ""
            elif found[4]:
                char = _SHORT.get(found[4], found[4] if found[4] in _SELF else "")
            else:
                char = found[5]
            if not char or "\ud800" <= char <= "\udfff":
                at = token.start + 1 + skip + found.start()
                refuse_at(self._text, at, f"{found[0]!r} is no character of a text")
            chars.append(char)
        return chars

    def _refuse(self, token: _Token, reason: str) -> NoReturn:
        refuse_at(self._text, token.start, reason)


def _cut(text: str) -> list[_Token]:
    tokens = []
    at = 0
    while at < len(text):
        found = _TOKEN.match(text, at)
        if found is None:
            refuse_at(text, at, f"{text[at]!r} begins nothing that a grammar can hold")
        if found.lastgroup != "space":
            tokens.append(_Token(found.lastgroup or "", found[0], at))
        at = found.end()
    return tokens
