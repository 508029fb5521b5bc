"""Compiles grammars and walks their states: llguidance, with its edges made safe.

A `GrammarCompiler` turns a grammar of any kind into a `CompiledGrammar`; `start()` gives a
`GrammarState`, the state of one text. Copies are cheap (1-5 us) and share what the lexer has
learned, so every question is asked of a copy and a state itself holds committed tokens only.

End-of-sequence tokens never enter the matcher. llguidance records an eos in one of its two end
states and not in the other, so rolling back over one is not reliable; here an eos is allowed
exactly where the text may end, and after it nothing is. An illegal token leaves a state as it was.

Knows no sessions, no sockets, no torch. Sources: llguidance 1.9 `LLMatcher`; llguidance
docs/syntax.md.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

import llguidance

from models.grammar.choice import choice_grammar
from models.grammar.forced import forced_tokens
from models.grammar.limits import (
    ChoiceLimits,
    ParserLimits,
    RegexLimits,
    RuleLimits,
    SchemaLimits,
    check_size,
    parse_schema,
    refuse,
)
from models.grammar.regex import regex_grammar
from models.grammar.rules import ebnf, structural_tag
from models.grammar.rules.lark import LarkSource, lark_source
from models.grammar.rules.write import written
from models.grammar.schema.source import SchemaSource, one_line, schema_source
from models.protocol.errors import ServingError, UnsupportedGrammar
from models.protocol.forced import NOTHING_FORCED, Forced
from models.protocol.messages import Grammar


class MatcherBroken(ServingError):
    """The matcher hit a limit and cannot go on; the same tokens would break it again."""

    code = "grammar_too_complex"


_SPECIAL_BYTE = b"\xff"  # begins a special token in forced bytes; no text has it
_NO_TEXT = "no text obeys it"
_NOTHING_FITS = "NoExtensionBias"  # the compiler's name for a first mask without a token
_PLACE = re.compile(r"(?:at )?(\d+)\(\d+\): ")  # line and column; the column is of our rewriting


@dataclass(frozen=True)
class VocabularyInfo:
    """What tokens look like.

    `tokenizer_json` is the text of a tokenizer.json; `vocab_size` may be padded beyond it: the
    tokens in the padding are never allowed. `eos_ids` are all ids that end a text.
    """

    tokenizer_json: str
    vocab_size: int
    eos_ids: tuple[int, ...]


class GrammarCompiler:
    """Compiles grammars for one vocabulary.

    Raises:
        ValueError: the tokenizer cannot be read, or the vocabulary or eos ids do not fit it.
    """

    def __init__(
        self,
        vocabulary: VocabularyInfo,
        schema_limits: SchemaLimits | None = None,
        parser_limits: ParserLimits | None = None,
    ) -> None:
        eos_ids = vocabulary.eos_ids
        if not eos_ids or not all(0 <= i < vocabulary.vocab_size for i in eos_ids):
            raise ValueError(
                f"eos_ids {list(eos_ids)} must be one or more ids below the vocabulary size "
                f"{vocabulary.vocab_size}"
            )
        self._schema_limits = schema_limits or SchemaLimits()
        bounds = parser_limits or ParserLimits()
        self._fuel = bounds.initial_lexer_fuel
        self._parser_limits = _parser_limits(bounds, bounds.step_max_items)
        self._rule_limits = _parser_limits(bounds, bounds.step_max_rule_items)
        self._tokenizer = llguidance.LLTokenizer(
            vocabulary.tokenizer_json, n_vocab=vocabulary.vocab_size, eos_token=list(eos_ids)
        )
        special = sum(1 << i for i in range(vocabulary.vocab_size) if self._is_special(i))
        self._rows = RowLayout(vocabulary.vocab_size, frozenset(eos_ids), special)

    @property
    def row_bytes(self) -> int:
        """Size of one mask row."""
        return self._rows.row_bytes

    def check(self, grammar: Grammar) -> None:
        """Refuse what can be refused without the compiler, in a few milliseconds at most.

        Raises:
            UnsupportedGrammar: too long, or a schema over a limit.
        """
        check_size(grammar, self._schema_limits)
        if grammar.kind == "json_schema":
            parse_schema(grammar.text, self._schema_limits)

    def compile(self, grammar: Grammar) -> CompiledGrammar:
        """Compile, and compute the first mask: hostile grammars show themselves there.

        Raises:
            UnsupportedGrammar: with the place in the grammar and the reason.
        """
        check_size(grammar, self._schema_limits)
        match grammar.kind:
            case "json_schema" | "json_object":
                return self._compile_schema(grammar)
            case "regex":
                source = LarkSource(regex_grammar(grammar.text, RegexLimits()))
            case "choice":
                source = LarkSource(choice_grammar(grammar.text, ChoiceLimits()))
            case "lark":
                source = lark_source(grammar.text, RuleLimits(), self._schema_limits)
            case "ebnf":
                rules = ebnf.parse_ebnf(grammar.text, RuleLimits())
                source = LarkSource(written(rules, ebnf.START, RuleLimits()))
            case "structural_tag":
                source = self._tag_source(grammar.text)
        return self._compile_rules(source)

    def _compile_schema(self, grammar: Grammar) -> CompiledGrammar:
        source = schema_source(
            grammar.text if grammar.kind == "json_schema" else '{"type": "object"}',
            self._schema_limits,
            grammar.whitespace,
            is_closed=grammar.is_closed,
        )
        matcher = self._match_schema(source)
        if matcher.is_error():
            source.refuse(matcher.get_error(), self._fuel)
        return self._compiled(matcher)

    def _compile_rules(self, source: LarkSource) -> CompiledGrammar:
        matcher = self._match(
            llguidance.LLMatcher.grammar_from_lark(source.text), self._rule_limits
        )
        if matcher.is_error():
            for place, schema in source.schemas:
                self._check_schema(place, schema)
            refuse(_complaint(matcher.get_error()))
        return self._compiled(matcher)

    def _tag_source(self, text: str) -> LarkSource:
        rules, schemas = structural_tag.parse_structural_tag(
            text, RuleLimits(), self._schema_limits, self._special_id
        )
        return LarkSource(written(rules, structural_tag.START, RuleLimits()), schemas)

    def _special_id(self, token: str | int) -> int | None:
        """The id of a special token that may stand within a text, by name or number."""
        ids = [token] if isinstance(token, int) else self._tokenizer.tokenize_str(token)
        if len(ids) != 1 or not 0 <= ids[0] < self._rows.vocab_size or ids[0] in self._rows.eos_ids:
            return None
        return ids[0] if self._is_special(ids[0]) else None

    def _is_special(self, token: int) -> bool:
        return token < self._tokenizer.vocab_size and self._tokenizer.is_special_token(token)

    def _check_schema(self, place: str, source: SchemaSource) -> None:
        """Refuse a schema within a grammar that cannot be served on its own either."""
        matcher = self._match_schema(source)
        if matcher.is_error():
            try:
                source.refuse(matcher.get_error(), self._fuel)
            except UnsupportedGrammar as error:
                refuse(error.message, path=place)

    def _compiled(self, matcher: llguidance.LLMatcher) -> CompiledGrammar:
        compiled = CompiledGrammar(matcher, self._rows, self._tokenizer)
        if not any(compiled.start().row()):
            refuse(_NO_TEXT)
        return compiled

    def _match_schema(self, source: SchemaSource) -> llguidance.LLMatcher:
        return self._match(llguidance.LLMatcher.grammar_from_json_schema(source.text))

    def _match(
        self, source: str, limits: llguidance.LLParserLimits | None = None
    ) -> llguidance.LLMatcher:
        matcher = llguidance.LLMatcher(
            self._tokenizer, source, log_level=0, limits=limits or self._parser_limits
        )
        if not matcher.is_error():
            matcher.compute_bitmask()
        return matcher


def _parser_limits(bounds: ParserLimits, step_max_items: int) -> llguidance.LLParserLimits:
    return llguidance.LLParserLimits(
        initial_lexer_fuel=bounds.initial_lexer_fuel,
        step_lexer_fuel=bounds.step_lexer_fuel,
        step_max_items=step_max_items,
        max_lexer_states=bounds.max_lexer_states,
        max_grammar_size=bounds.max_grammar_size,
        verbose_errors=False,
    )


class RowLayout:
    """The mask rows of one vocabulary: little-endian 32-bit words, bit t is token t.

    `special` has the bits of all special tokens.
    """

    def __init__(self, vocab_size: int, eos_ids: frozenset[int], special: int = 0) -> None:
        self.vocab_size = vocab_size
        self.eos_ids = eos_ids
        self.row_bytes = (vocab_size + 31) // 32 * 4
        self._eos = sum(1 << i for i in eos_ids)
        self._not_eos = ((1 << vocab_size) - 1) & ~self._eos
        self.special = special & self._not_eos

    def bits(self, row: bytes) -> int:
        """The row as a number, with every eos bit and the padding bits cleared."""
        return int.from_bytes(row, "little") & self._not_eos

    def with_eos(self, bits: int, *, is_allowed: bool) -> bytes:
        """The row of these bits, and of all eos bits where they are allowed."""
        return (bits | self._eos if is_allowed else bits).to_bytes(self.row_bytes, "little")


class CompiledGrammar:
    """A grammar ready to start texts. Shared by all sessions that use it."""

    def __init__(
        self, matcher: llguidance.LLMatcher, rows: RowLayout, tokenizer: llguidance.LLTokenizer
    ) -> None:
        self._matcher = matcher
        self._rows = rows
        self.tokenizer = tokenizer

    def start(self) -> GrammarState:
        """The state of an empty text."""
        return GrammarState(self._matcher.deep_copy(), self._rows, self.tokenizer)


class GrammarState:
    """The state of one text under a grammar: what may come next, and whether it may end here."""

    __slots__ = ("_matcher", "_num_consumed", "_rows", "_tokenizer", "has_ended")

    def __init__(
        self,
        matcher: llguidance.LLMatcher,
        rows: RowLayout,
        tokenizer: llguidance.LLTokenizer,
        num_consumed: int = 0,
    ) -> None:
        self._matcher = matcher
        self._rows = rows
        self._tokenizer = tokenizer
        self._num_consumed = num_consumed  # without an eos
        self.has_ended = False  # an eos was taken

    def __len__(self) -> int:
        return self._num_consumed + self.has_ended

    @property
    def eos_ids(self) -> frozenset[int]:
        """The tokens that end a text."""
        return self._rows.eos_ids

    @property
    def is_complete(self) -> bool:
        """Whether the text so far is a whole sentence of the grammar."""
        return self.has_ended or (self._matcher.is_accepting() and not self._matcher.is_error())

    def copy(self) -> GrammarState:
        """An independent state; what the lexer learns on one serves the other."""
        copied = GrammarState(
            self._matcher.deep_copy(), self._rows, self._tokenizer, self._num_consumed
        )
        copied.has_ended = self.has_ended
        return copied

    def forced(self, last: Sequence[int], max_tokens: int) -> Forced:
        """Up to `max_tokens` tokens that are forced next, after the text's last token `last`."""
        if self.has_ended or max_tokens < 1:
            return NOTHING_FORCED
        matcher = self._matcher.deep_copy()
        return forced_tokens(matcher, self._tokenizer, last, max_tokens, self._rows.eos_ids)

    def advance(self, token: int) -> bool:
        """Take one token; False, and no change, when it is not allowed here.

        Raises:
            MatcherBroken: a limit was hit; the state is of no further use.
        """
        if self.has_ended or not 0 <= token < self._rows.vocab_size:
            return False
        if token in self._rows.eos_ids:
            self.has_ended = self.is_complete
            return self.has_ended
        taken: int = self._matcher.try_consume_tokens([token])
        self._check()
        self._num_consumed += taken
        return taken == 1

    def truncate(self, length: int) -> None:
        """Roll back to the first `length` tokens; `length` must be within 0..len(self).

        Raises:
            MatcherBroken: the matcher refused to roll back.
        """
        if not 0 <= length <= len(self):  # a rollback past the start breaks a matcher for good
            raise ValueError(f"cannot roll back to {length} tokens, there are {len(self)}")
        if length == len(self):
            return
        self.has_ended = False
        self._matcher.rollback(self._num_consumed - length)
        self._check()
        self._num_consumed = length

    def row(self) -> bytes:
        """The mask of this state: `row_bytes` bytes.

        Raises:
            MatcherBroken: a limit was hit; the state is of no further use.
        """
        if self.has_ended:
            return bytes(self._rows.row_bytes)
        row: bytes = self._matcher.compute_bitmask()
        self._check()
        bits = self._rows.bits(row)
        if not bits or bits & self._rows.special:
            bits = self._without_names(bits)
        return self._rows.with_eos(bits, is_allowed=self.is_complete)

    def _without_names(self, bits: int) -> int:
        """The bits without special tokens whose names the grammar has as text.

        Where the next text is forced and spells a special token's name, llguidance's mask has that
        token alone, which its matcher then refuses. The text's first byte stands in for it.
        """
        left = bits & self._rows.special
        while left:
            token = left.bit_length() - 1
            left ^= 1 << token
            if not self._matcher.validate_tokens([token]):
                bits ^= 1 << token
        text: bytes = b"" if bits else self._matcher.deep_copy().compute_ff_bytes()
        if text.startswith(_SPECIAL_BYTE):
            return bits
        first: list[int] = self._tokenizer.tokenize_bytes(text[:1])
        return bits | sum(1 << token for token in first)

    def _check(self) -> None:
        if self._matcher.is_error():
            raise MatcherBroken(one_line(self._matcher.get_error()))


def walk_rows(state: GrammarState, chain: Sequence[int], first_row: int) -> list[bytes]:
    """Rows of the states after `chain[:first_row]`, `chain[:first_row + 1]`, ..., `chain`.

    `state` is moved. The list ends early before the first state that does not exist: after an
    illegal token or an eos.

    Raises:
        MatcherBroken: a limit was hit.
    """
    rows: list[bytes] = []
    for i in range(len(chain) + 1):
        if i >= first_row:
            if state.has_ended:
                break
            rows.append(state.row())
        if i < len(chain) and not state.advance(chain[i]):
            break
    return rows


def _complaint(error: str) -> str:
    """The first line of a complaint about rules: the others show what the client did not write."""
    line = one_line(error.strip().partition("\n")[0])
    if line == _NOTHING_FITS:
        return _NO_TEXT
    if "Too many items" in line:
        line = f"it can be read in too many ways: {line}"
    place = _PLACE.match(line)
    return f"line {place[1]}: {line[place.end() :]}" if place else line
