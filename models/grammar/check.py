"""Compares a text with a grammar: how far it goes, and what could come next. Generates nothing.

    python -m models.grammar.check --grammar sql.lark answer.txt
    echo '{"a": 1}' | python -m models.grammar.check --schema schema.json -

The command needs no model: without `--tokenizer` every byte is a token. It ends with 0 if the whole
text obeys the grammar, and with 1 if it does not. It ends with 2 if the grammar is refused.
"""

from __future__ import annotations

import argparse
import resource
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import llguidance

from models.grammar.compiler import GrammarCompiler, VocabularyInfo
from models.grammar.rules.ebnf import is_ebnf
from models.grammar.state import CompiledGrammar, GrammarState
from models.protocol.errors import ServingError
from models.protocol.messages import Grammar

_MAX_EXPECTED = 12  # texts that are named
_MAX_LOOKED_AT = 4_000  # allowed tokens
_MAX_FORCED = 32  # tokens
_BYTES = VocabularyInfo("byte", 257, (256,))  # llguidance's own vocabulary of bytes
_CPU_S = 30
_MEMORY_BYTES = 2 << 30


@dataclass(frozen=True)
class Checked:
    """The part of a text that obeys a grammar.

    `num_bytes` of its UTF-8 can begin a text of the grammar. `may_end`: they are a whole one.
    `expected`: some texts of which one may come next, none if the text must end.
    """

    num_bytes: int
    may_end: bool
    expected: list[str]


def check_text(compiled: CompiledGrammar, text: str) -> Checked:
    """Compare a text with a grammar, byte by byte where it must be.

    Where the grammar has a special token, its name in the text stands for it.

    Raises:
        MatcherBroken: a limit of the matcher was hit.
    """
    tokenizer = compiled.tokenizer
    state = compiled.start()
    num_bytes = 0
    for token in tokenizer.tokenize_bytes(text.encode(), parse_special=True):
        piece: bytes = tokenizer.decode_bytes([token])
        # The name of an end of text is text like any other here.
        if token not in state.eos_ids and state.advance(token):
            num_bytes += len(piece)
            continue
        taken = _advance_bytes(compiled, state, piece)
        num_bytes += taken
        if taken < len(piece):
            break
    return Checked(num_bytes, state.is_complete, _expected(compiled, state))


def _advance_bytes(compiled: CompiledGrammar, state: GrammarState, piece: bytes) -> int:
    """Take a piece's bytes one by one; return how many were taken."""
    for taken in range(len(piece)):
        tokens: list[int] = compiled.tokenizer.tokenize_bytes(piece[taken : taken + 1])
        if len(tokens) != 1 or not state.advance(tokens[0]):
            return taken
    return len(piece)


def _expected(compiled: CompiledGrammar, state: GrammarState) -> list[str]:
    tokenizer = compiled.tokenizer
    forced = [] if state.is_complete else state.forced((), _MAX_FORCED).tokens
    if forced:
        return [tokenizer.decode_bytes(forced).decode(errors="replace")]
    bits = int.from_bytes(state.row(), "little")
    found: set[str] = set()
    num_looked_at = 0
    while bits and num_looked_at < _MAX_LOOKED_AT:
        token = (bits & -bits).bit_length() - 1
        bits &= bits - 1
        num_looked_at += 1
        if token not in state.eos_ids:
            found.add(tokenizer.decode_bytes([token]).decode(errors="replace"))
    return sorted(found - {"", "\ufffd"}, key=lambda text: (len(text), text))[:_MAX_EXPECTED]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command."""
    options = _options().parse_args(arguments)
    # A hostile grammar ends this process and nothing else.
    resource.setrlimit(resource.RLIMIT_CPU, (_CPU_S, _CPU_S))
    resource.setrlimit(resource.RLIMIT_DATA, (_MEMORY_BYTES, _MEMORY_BYTES))
    try:
        compiled = GrammarCompiler(_vocabulary(options.tokenizer)).compile(_grammar(options))
        text = sys.stdin.read() if options.text == "-" else _read(options.text)
        text = text.removesuffix("\n") if options.chomp else text
        found = check_text(compiled, text)
    except (OSError, ValueError, ServingError) as error:
        sys.stderr.write(f"refused: {getattr(error, 'message', error)}\n")
        return 2
    for part in compiled.loosened:
        line = f"line {part.line}: " if part.line else ""
        sys.stdout.write(f"not enforced: {line}{part.path}: {part.reason}\n")
    is_valid, told = _told(found, text)
    sys.stdout.write(told + "\n")
    return 0 if is_valid else 1


def _told(found: Checked, text: str) -> tuple[bool, str]:
    """Return whether the whole text obeys, and the sentences that say so."""
    data = text.encode()
    is_whole = found.num_bytes == len(data)
    if is_whole and found.may_end:
        return True, "the whole text obeys the grammar"
    head = data[: found.num_bytes].decode(errors="ignore")
    line, column = head.count("\n") + 1, len(head) - (head.rfind("\n") + 1) + 1
    what = "the text is not at its end" if is_whole else "the text leaves the grammar"
    expected = ", ".join(map(repr, found.expected)) or "the end"
    where = f"byte {found.num_bytes} (line {line}, column {column})"
    return False, f"{what} at {where}\nexpected: {expected}"


def _options() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m models.grammar.check", description="Compare a text with a grammar."
    )
    kinds = parser.add_mutually_exclusive_group(required=True)
    kinds.add_argument("--schema", metavar="FILE", help="a JSON schema")
    kinds.add_argument("--grammar", metavar="FILE", help="Lark, or EBNF (name ::= ...)")
    kinds.add_argument("--structural-tag", metavar="FILE", help="a structural tag as JSON")
    kinds.add_argument("--choice", metavar="FILE", help="a JSON list of texts")
    kinds.add_argument("--regex", metavar="PATTERN", help="a regular expression, Python's")
    parser.add_argument("--tokenizer", metavar="PATH", help="a tokenizer.json, for special tokens")
    parser.add_argument("--whitespace-pattern", metavar="PATTERN", help="of JSON; '' for none")
    parser.add_argument(
        "--loose",
        action="store_true",
        help="loosen what of the schema cannot be served, as for a tool that is not strict",
    )
    parser.add_argument(
        "--chomp", action="store_true", help="leave out a line feed at the end of the text"
    )
    parser.add_argument("text", help="the file with the text; - for the standard input")
    return parser


def _grammar(options: argparse.Namespace) -> Grammar:
    if options.regex is not None:
        return Grammar(kind="regex", text=options.regex)
    if options.grammar is not None:
        text = _read(options.grammar)
        return Grammar(kind="ebnf" if is_ebnf(text) else "lark", text=text)
    if options.structural_tag is not None:
        return Grammar(kind="structural_tag", text=_read(options.structural_tag))
    if options.choice is not None:
        return Grammar(kind="choice", text=_read(options.choice))
    return Grammar(
        kind="json_schema",
        text=_read(options.schema),
        whitespace=options.whitespace_pattern,
        loose=(0,) if options.loose else (),
    )


def _vocabulary(path: str | None) -> VocabularyInfo:
    if path is None:
        return _BYTES
    text = _read(path)
    tokenizer = llguidance.LLTokenizer(text)
    return VocabularyInfo(text, tokenizer.vocab_size, (tokenizer.eos_token,))


def _read(path: str) -> str:
    return Path(path).read_text(encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
