r"""Checks a grammar in Lark's notation and writes it in llguidance's.

Names, rules and operators go through as they are, line by line. Parts with a meaning of their own
are read here. So they mean the same as elsewhere in this package. A regular expression is Python's,
as in Lark itself (`patterns`), and a string is decoded. A schema (`%json {...}`) is checked and
rewritten like one that stands alone. Parts that the compiler would ignore are refused. So are those
that would let a grammar leave the rules of a session (token numbers, options, limits on tokens).

Terminals (upper case), strings and regular expressions are read longest first, as by the compiler's
lexer. So `/[a-z]+/ "x"` never comes to its end. Generated text always obeys the grammar. Sources:
Lark's reference of its grammar notation; llguidance docs/syntax.md.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from models.grammar.choice import literal
from models.grammar.limits import (
    MAX_DEPTH,
    MAX_EXPANDED,
    MAX_REPEAT,
    MAX_RULES,
    MAX_SCHEMAS,
    SchemaLimits,
    refuse,
)
from models.grammar.patterns.parser import parse_regex
from models.grammar.patterns.tree import NOTHING
from models.grammar.regex import expanded_size, simplified, spelt_node
from models.grammar.rules.lark_tokens import Token, refuse_at, tokens_of
from models.grammar.schema.source import SchemaSource, schema_source
from models.protocol.errors import UnsupportedGrammar

_ATTRIBUTES = ("lazy", "suffix")
_ESCAPE = re.compile(r"\\(?:x([0-9a-fA-F]{2})|u([0-9a-fA-F]{4})|U([0-9a-fA-F]{8})|(.))", re.DOTALL)
_TOKEN_ID = re.compile(r"<\[[0-9]{1,9}\]>")
_SHORT = {"n": "\n", "t": "\t", "r": "\r", "f": "\f", "b": "\b", '"': '"', "\\": "\\", "/": "/"}
_FLAGS = {"i": "i", "s": "s", "u": ""}
_DIRECTIVES = {
    "%declare": "no lexer but the grammar's own can be declared",
    "%override": "there is nothing to override",
    "%extend": "there is nothing to extend",
    "%lark": "a grammar within the grammar is not supported",
    "%if": "parametric rules are not supported",
}
_SIGNS = {
    "::": "parametric rules are not supported",
    "@": "there is no other grammar to refer to",
    "=": "is only supported in an attribute of a rule",
}


@dataclass
class LarkSource:
    """A grammar as the compiler takes it, and the schemas within."""

    text: str = ""
    schemas: list[tuple[str, SchemaSource]] = field(default_factory=list)  # with their places


def lark_source(
    text: str, schema_limits: SchemaLimits, loose: frozenset[int] = frozenset()
) -> LarkSource:
    """Check and rewrite a grammar; `loose`: lines whose schemas may be loosened.

    Raises:
        UnsupportedGrammar: with the line and the column.
    """
    return _Reader(text, schema_limits, loose).read()


class _Reader:
    def __init__(self, text: str, schema_limits: SchemaLimits, loose: frozenset[int]) -> None:
        self._text = text
        self._loose = loose
        self._schema_limits = schema_limits
        self._source = LarkSource()
        self._written: list[str] = []
        self._depth = 0
        self._num_rules = 0
        self._size = 0  # characters of all regular expressions with their repeats written out

    def read(self) -> LarkSource:
        tokens = [one for one in tokens_of(self._text) if one.kind not in ("space", "comment")]
        at = 0
        while at < len(tokens):
            at = self._step(tokens, at)
        if self._depth:
            refuse("a parenthesis or bracket is never closed")
        self._source.text = "".join(self._written).strip("\n") + "\n"
        return self._source

    def _step(self, tokens: list[Token], at: int) -> int:
        """Write what begins at a token; return the place of the next."""
        token = tokens[at]
        if _begins_rule(tokens, at):
            return self._head(tokens, at)
        match token.kind:
            case "string" if _kind_of(tokens, at + 1) == "..":
                return self._range(tokens, at)
            case "string":
                self._write(self._string(token))
            case "regex":
                pattern, _, flags = token.text[1:].rpartition("/")
                self._write(self._regex(token, pattern, flags))
            case "special":
                self._write(self._special(token))
            case "directive":
                return self._directive(tokens, at)
            case "json":
                refuse_at(self._text, token.start, "JSON may only follow %json")
            case "sign":
                self._sign(token)
            case "number" if int(token.text[:9]) > MAX_REPEAT:
                reason = f"repeat count {token.text[:20]} is over {MAX_REPEAT}"
                refuse_at(self._text, token.start, f"{reason}, the limit")
            case _:
                self._write(token.text)
        return at + 1

    def _write(self, text: str) -> None:
        self._written.append(text if text == "\n" else text + " ")

    def _head(self, tokens: list[Token], at: int) -> int:
        """Read the name of a rule, with its attributes and priority."""
        self._num_rules += 1
        if self._num_rules > MAX_RULES:
            reason = f"more than {MAX_RULES} rules, which is the limit"
            refuse_at(self._text, tokens[at].start, reason)
        self._written.append(tokens[at].text)
        at += 1
        if _kind_of(tokens, at) == "{":
            refuse_at(self._text, tokens[at].start, "templates are not supported")
        if _kind_of(tokens, at) == ".":
            refuse_at(self._text, tokens[at].start, "priorities are not supported")
        if _kind_of(tokens, at) != "[":
            return at
        self._written.append("[")
        at += 1
        while _kind_of(tokens, at) != "]":
            at = self._attribute(tokens, at)
        self._written.append("]")
        return at + 1

    def _attribute(self, tokens: list[Token], at: int) -> int:
        if at >= len(tokens):
            refuse_at(self._text, tokens[-1].start, "the attributes are never closed")
        token = tokens[at]
        if token.text == ",":
            self._written.append(", ")
            return at + 1
        if token.text not in _ATTRIBUTES:
            reason = f"the attribute {token.text[:40]} is not supported"
            refuse_at(self._text, token.start, reason)
        self._written.append(token.text)
        if token.text == "lazy":
            return at + 1
        if _kind_of(tokens, at + 1) != "=" or _kind_of(tokens, at + 2) != "string":
            refuse_at(self._text, token.start, 'suffix takes a string: suffix="..."')
        self._written.append("=" + self._string(tokens[at + 2]))
        return at + 3

    def _directive(self, tokens: list[Token], at: int) -> int:
        token = tokens[at]
        if token.text in _DIRECTIVES:
            refuse_at(self._text, token.start, f"{token.text}: {_DIRECTIVES[token.text]}")
        if token.text in ("%json", "%regex", "%llguidance"):
            if _kind_of(tokens, at + 1) != "json":
                refuse_at(self._text, token.start, f"{token.text} must be followed by {{")
            self._json(token.text, tokens[at + 1])
            return at + 2
        if token.text not in ("%ignore", "%import"):
            refuse_at(self._text, token.start, f"{token.text} is not supported")
        self._write(token.text)
        return at + 1

    def _json(self, directive: str, token: Token) -> None:
        if directive == "%json":
            line = self._text.count("\n", 0, token.start) + 1
            if len(self._source.schemas) == MAX_SCHEMAS:
                reason = f"more than {MAX_SCHEMAS} schemas, which is the limit"
                refuse_at(self._text, token.start, reason)
            with _naming(self._text, token.start, "%json"):
                is_loose = line in self._loose
                source = schema_source(token.text, self._schema_limits, is_loose=is_loose)
            self._source.schemas.append((f"line {line}: %json", source))
            lines = "\n" * token.text.count("\n")  # the compiler's complaints name lines
            self._write(f"%json {{{lines}{source.text[1:]}")
        elif token.text.strip("{} \t\r\n"):
            reason = f"{directive} with options or parts is not supported"
            refuse_at(self._text, token.start, reason)

    def _range(self, tokens: list[Token], at: int) -> int:
        if _kind_of(tokens, at + 2) != "string":
            refuse_at(self._text, tokens[at + 1].start, 'a range is two strings: "a".."z"')
        ends = [self._decoded(tokens[i]) for i in (at, at + 2)]
        if any(len(end) != 1 for end in ends) or ends[0] > ends[1]:
            refuse_at(self._text, tokens[at].start, "a range is from one character to a later one")
        self._write(f"/[\\x{{{ord(ends[0]):x}}}-\\x{{{ord(ends[1]):x}}}]/")
        return at + 3

    def _string(self, token: Token) -> str:
        text = self._decoded(token)
        if not text:
            return '""'
        if token.text.endswith("i"):
            return self._regex(token, re.escape(text), "i")
        self._grow(token, len(text))
        return f"/{literal(text)}/"

    def _decoded(self, token: Token) -> str:
        def char(found: re.Match[str]) -> str:
            digits = found[1] or found[2] or found[3]
            if digits is None and found[4] in _SHORT:
                return _SHORT[found[4]]
            code = int(digits, 16) if digits else -1
            if not 0 <= code <= 0x10FFFF or 0xD800 <= code <= 0xDFFF:
                at = token.start + 1 + found.start()
                refuse_at(self._text, at, f"{found[0]} is no escape of a character")
            return chr(code)

        return _ESCAPE.sub(char, token.text[1 : token.text.rindex('"')])

    def _regex(self, token: Token, pattern: str, flags: str) -> str:
        for flag in flags:
            if flag not in _FLAGS:
                refuse_at(self._text, token.start, f"the flag {flag} is not supported")
        letters = "".join(sorted({_FLAGS[flag] for flag in flags}))
        prefix = f"(?{letters})" if letters else ""
        with _naming(self._text, token.start, "regular expression"):
            parsed = parse_regex(prefix + pattern)
            tree = simplified(parsed, at_start=True, at_end=True)
            if tree == NOTHING:
                refuse("no text matches this pattern")
        self._grow(token, expanded_size(tree))
        written = spelt_node(tree)
        return f"/(?:{written})/" if written else '""'

    def _grow(self, token: Token, size: int) -> None:
        self._size += size
        if self._size > MAX_EXPANDED:
            refuse_at(
                self._text,
                token.start,
                f"the strings and patterns up to here have {self._size} characters with their "
                f"repeats written out, the limit is {MAX_EXPANDED}",
            )

    def _special(self, token: Token) -> str:
        if token.text.startswith("<[") and not _TOKEN_ID.fullmatch(token.text):
            reason = f"{token.text[:40]}: only one token may be numbered, as in <[7]>"
            refuse_at(self._text, token.start, reason)
        return token.text

    def _sign(self, token: Token) -> None:
        if token.text in _SIGNS:
            refuse_at(self._text, token.start, f"{token.text} {_SIGNS[token.text]}")
        self._depth += (token.text in "([{") - (token.text in ")]}")
        if self._depth > MAX_DEPTH:
            reason = f"parentheses nest more than {MAX_DEPTH} deep, which is the limit"
            refuse_at(self._text, token.start, reason)
        self._written.append(token.text)  # "?" and "!" may be the first letter of a name


def _kind_of(tokens: list[Token], at: int) -> str:
    """Return the kind of a token; for a sign, the sign."""
    if at >= len(tokens):
        return ""
    return tokens[at].text if tokens[at].kind == "sign" else tokens[at].kind


def _begins_rule(tokens: list[Token], at: int) -> bool:
    """Return whether a token is the name that a line defines."""
    if tokens[at].kind != "name":
        return False
    before = at - 1
    while before >= 0 and _kind_of(tokens, before) in ("?", "!"):
        before -= 1
    return before < 0 or tokens[before].kind == "newline"


@contextmanager
def _naming(text: str, start: int, what: str) -> Iterator[None]:
    """Name the place in refusals within the block."""
    try:
        yield
    except UnsupportedGrammar as error:
        refuse_at(text, start, f"{what}: {error.message}")
