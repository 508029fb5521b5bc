"""Compiles grammars: llguidance, with its edges made safe.

A `GrammarCompiler` turns a grammar of any kind into a `CompiledGrammar` (`state.py`).

Schemas that may be loosened (`Grammar.loose`, tools without `strict`) lose unsupported parts, place
by place (`schema/loosen.py`). All others are served exactly or refused.

Knows no sessions, no sockets, no torch. Sources: llguidance 1.9 `LLMatcher`; llguidance
docs/syntax.md.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from typing import NoReturn

import llguidance

from models.grammar.choice import choice_grammar
from models.grammar.limits import ParserLimits, SchemaLimits, check_size, refuse
from models.grammar.loose import settled
from models.grammar.regex import regex_grammar
from models.grammar.rules import ebnf, structural_tag
from models.grammar.rules.lark import LarkSource, lark_source
from models.grammar.rules.write import written
from models.grammar.schema.loosen import loosened_schema
from models.grammar.schema.parse import parse_json
from models.grammar.schema.source import NO_TEXT, SchemaSource, one_line, schema_source
from models.grammar.state import CompiledGrammar, RowLayout
from models.protocol.errors import UnsupportedGrammar
from models.protocol.grammars import Loosened
from models.protocol.messages import Grammar

_MAX_NOTES = 64  # on what need not be enforced
_LINE = re.compile(r"line (\d+)")  # how places in rules begin
_PLACE = re.compile(r"(?:at )?(\d+)\(\d+\): ")  # line and column; the column is of our rewriting


@dataclass(frozen=True)
class VocabularyInfo:
    """The tokens of a vocabulary.

    `tokenizer_json` is the text of a tokenizer.json. `vocab_size` may be padded beyond it: the
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
        if grammar.kind == "json_schema" and not grammar.loose:
            parse_json(grammar.text, self._schema_limits)

    def compile(self, grammar: Grammar) -> CompiledGrammar:
        """Compile, and compute the first mask: hostile grammars show themselves there.

        Raises:
            UnsupportedGrammar: with the place in the grammar and the reason.
        """
        if not grammar.loose:
            return self._compile_whole(grammar)
        found, compiled = settled(
            grammar, self._schema_limits, self._complaint_about, self._compile_whole
        )
        compiled.dropped = found.dropped
        compiled.loosened = (*found.dropped, *compiled.loosened)
        return compiled

    def _compile_whole(self, grammar: Grammar) -> CompiledGrammar:
        check_size(grammar, self._schema_limits)
        match grammar.kind:
            case "json_schema" | "json_object":
                return self._compile_schema(grammar)
            case "regex":
                source = LarkSource(regex_grammar(grammar.text))
            case "choice":
                source = LarkSource(choice_grammar(grammar.text))
            case "lark":
                loose = frozenset(grammar.loose)
                source = lark_source(grammar.text, self._schema_limits, loose)
            case "ebnf":
                source = LarkSource(written(ebnf.parse_ebnf(grammar.text), ebnf.START))
            case "structural_tag":
                source = self._tag_source(grammar.text)
        return self._compile_rules(source)

    def _compile_schema(self, grammar: Grammar) -> CompiledGrammar:
        source = schema_source(
            grammar.text if grammar.kind == "json_schema" else '{"type": "object"}',
            self._schema_limits,
            grammar.whitespace,
            is_closed=grammar.is_closed,
            is_loose=bool(grammar.loose),
        )
        matcher = self._match_schema(source)
        if matcher.is_error():
            self._refuse("", source, matcher.get_error())
        return self._compiled(matcher, [("", source)])

    def _compile_rules(self, source: LarkSource) -> CompiledGrammar:
        matcher = self._match(
            llguidance.LLMatcher.grammar_from_lark(source.text), self._rule_limits
        )
        if matcher.is_error():
            for place, schema in source.schemas:
                self._check_schema(place, schema)
            refuse(_complaint(matcher.get_error()))
        return self._compiled(matcher, source.schemas)

    def _complaint_about(self, source: SchemaSource) -> str:
        """Say why a schema is not served alone; empty: it is."""
        matcher = self._match_schema(source)
        if matcher.is_error():
            return matcher.get_error() or "it is refused"
        try:
            self._compiled(matcher, [])
        except UnsupportedGrammar as error:
            return error.message
        return ""

    def _tag_source(self, text: str) -> LarkSource:
        rules, schemas = structural_tag.parse_structural_tag(
            text, self._schema_limits, self._special_id
        )
        return LarkSource(written(rules, structural_tag.START), schemas)

    def _special_id(self, token: str | int) -> int | None:
        """Return the id of a special token that may stand within a text, by name or number."""
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
            self._refuse(place, source, matcher.get_error())

    def _refuse(self, place: str, source: SchemaSource, complaint: str) -> NoReturn:
        """Refuse a schema with the compiler's complaint; `place`: of the schema in a grammar."""
        try:
            source.refuse(complaint, self._fuel, self._place_of(source, complaint))
        except UnsupportedGrammar as error:
            refuse(error.message, path=place)

    def _place_of(self, source: SchemaSource, complaint: str) -> str:
        """Return the place that a complaint without a place is about; "": trials find none."""
        if not source.original or source.located(complaint):
            return ""
        found = loosened_schema(source.original, self._schema_limits, self._complaint_about)
        return found.loosened[0].path if found.loosened and found.is_least else ""

    def _compiled(
        self, matcher: llguidance.LLMatcher, schemas: list[tuple[str, SchemaSource]]
    ) -> CompiledGrammar:
        compiled = CompiledGrammar(matcher, self._rows, self._tokenizer)
        if not any(compiled.start().row()):
            refuse(NO_TEXT)
        compiled.loosened = tuple(islice(_notes(schemas), _MAX_NOTES))
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


def _notes(schemas: list[tuple[str, SchemaSource]]) -> Iterator[Loosened]:
    """Yield the parts of schemas that are not enforced, and need not be by the standard."""
    for place, source in schemas:
        found = _LINE.match(place)
        for path, reason in source.complaints.notes:
            yield Loosened(line=int(found[1]) if found else 0, path=path, reason=reason)


def _complaint(error: str) -> str:
    """Return the first line of a complaint about rules.

    The other lines show text that the client did not write.
    """
    line = one_line(error.strip().partition("\n")[0])
    if "Too many items" in line:
        line = f"it can be read in too many ways: {line}"
    place = _PLACE.match(line)
    return f"line {place[1]}: {line[place.end() :]}" if place else line
