"""Schemas of tools that are not strict: whatever they are, they are served."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Callable
from typing import Any

import jsonschema
import llguidance
import pytest
from msgspec.structs import replace

from models.grammar.compiler import GrammarCompiler
from models.grammar.limits import SchemaLimits
from models.grammar.loose import all_bare, fitted
from models.grammar.state import CompiledGrammar
from models.protocol.errors import UnsupportedGrammar
from models.protocol.messages import Grammar
from tests.cases.grammar import Vocabulary, random_text
from tests.cases.rules import accepts


def of(**properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "additionalProperties": False}


def loose(schema: Any) -> Grammar:
    return Grammar(kind="json_schema", text=json.dumps(schema), loose=(0,))


def lines(*tools: tuple[Any, bool]) -> Grammar:
    """Tools, each with whether it is loose, as the grammar of a turn has them."""
    calls = " | ".join(f"call_{i}" for i in range(len(tools)))
    rules = [f'call_{i}: "f{i} " %json {json.dumps(schema)}' for i, (schema, _) in enumerate(tools)]
    text = "\n".join([f"start: {calls}", *rules, ""])
    places = tuple(i + 2 for i, (_, is_loose) in enumerate(tools) if is_loose)
    return Grammar(kind="lark", text=text, loose=places)


def paths(compiled: CompiledGrammar) -> list[str]:
    return [part.path for part in compiled.loosened]


NEVER = {"type": "integer", "minimum": 5, "maximum": 3}
MANY = {
    f"k{i}": {"type": "array", "uniqueItems": True, "items": {"type": "string"}} for i in range(30)
}

# A schema, and the places that must be loosened.
LOOSENED: dict[str, tuple[Any, list[str]]] = {
    "a count of null": (of(a={"type": "string", "maxLength": None}), ["$.properties.a.maxLength"]),
    "a type that is none": (of(a={"type": 5}, b={"type": "null"}), ["$.properties.a.type"]),
    "no object": ({"type": "string"}, ["$"]),
    "no type": ({"type": 5}, ["$"]),
    "false": (False, ["$"]),
    "a list": ([1], ["$"]),
    "a reference to nowhere": (of(a={"$ref": "#/$defs/no"}), ["$.properties.a.$ref"]),
    "a reference abroad": (of(a={"$ref": "http://x.y/z"}), ["$.properties.a.$ref"]),
    "itself": ({"$ref": "#"}, ["$.$ref"]),
    "an unknown format": (of(a={"type": "string", "format": "color"}), ["$.properties.a.format"]),
    "a condition": (
        of(a={"if": {"multipleOf": 3}, "then": {"maximum": 5}}),
        ["$.properties.a.if"],
    ),
    "containing": (of(a={"contains": {"const": 1}}), ["$.properties.a.contains"]),
    "patterns": (
        of(a={"type": "string", "pattern": "("}, b={"type": "string", "pattern": "(?<=a)b"}),
        ["$.properties.a.pattern", "$.properties.b.pattern"],
    ),
    "a look-behind by its name": (
        {"type": "object", "patternProperties": {"(?<=a)": {}}, "additionalProperties": False},
        ["$.patternProperties"],
    ),
    "one of two that overlap": (
        of(a={"oneOf": [{"type": "integer"}, {"type": "number"}]}),
        ["$.properties.a.oneOf"],
    ),
    "null for a schema": (of(a=None, b={"type": "null"}), ["$.properties.a"]),
    "no properties": ({"properties": [1]}, ["$.properties"]),
    "within a denial": ({"not": {"properties": {"a": {"type": 5}}}}, ["$.not"]),
    "arrays only": ({"anyOf": [{"type": "array"}]}, ["$.anyOf[0].type"]),
    "many": (of(**MANY), [f"$.properties.{name}.uniqueItems" for name in MANY]),
    "required and impossible": (
        {**of(a=NEVER), "required": ["a"]},
        ["$.required"],
    ),
}


@pytest.mark.parametrize("name", LOOSENED)
def test_what_cannot_be_served_is_loosened_at_its_place(
    vocabulary: Vocabulary, compiler: GrammarCompiler, name: str
) -> None:
    schema, places = LOOSENED[name]
    compiled = compiler.compile(loose(schema))
    assert sorted(paths(compiled)) == sorted(places)
    assert all(part.reason for part in compiled.loosened)
    rng = random.Random(name)
    for _ in range(3):
        text = vocabulary.decode(random_text(compiled, vocabulary, rng, max_tokens=2000))
        assert isinstance(json.loads(text), dict)


LOOKING = {f"k{i}": {"type": "string", "pattern": rf"\bcat{i}\b"} for i in range(40)}
HEAVY = {"type": "string", "format": "uri", "minLength": 300}  # refused without a place
OVERLAPPING = {"oneOf": [of(b=HEAVY), of(b=HEAVY, c=NEVER)]}


@pytest.mark.parametrize(
    "schema",
    [
        of(**LOOKING),
        of(**dict(list(LOOKING.items())[:20]), h=HEAVY),
        of(**dict.fromkeys("abcdefgh", HEAVY)),
    ],
    ids=["many look-aheads", "look-aheads and a costly text", "costly texts"],
)
def test_the_search_reads_no_more_than_its_limit(
    compiler: GrammarCompiler, monkeypatch: pytest.MonkeyPatch, schema: Any
) -> None:
    read: list[int] = []
    match = llguidance.LLMatcher.grammar_from_json_schema

    def counted(text: str) -> str:
        read.append(len(text))
        return match(text)

    monkeypatch.setattr(llguidance.LLMatcher, "grammar_from_json_schema", staticmethod(counted))
    compiled = compiler.compile(loose(schema))
    assert compiled.loosened
    assert len(read) <= 100
    assert sum(read) <= 1_000_000 + 12 * max(read)
    again = compiler.compile(loose(schema))
    assert again.loosened == compiled.loosened


def test_patterns_with_look_ahead_are_counted(compiler: GrammarCompiler) -> None:
    """The first 32 are served; the same one twice is one."""
    compiled = compiler.compile(loose(of(**LOOKING)))
    assert paths(compiled) == [f"$.properties.k{i}.pattern" for i in range(32, 40)]
    assert "32 other patterns" in compiled.loosened[0].reason
    same = {"type": "string", "pattern": r"\bcat\b"}
    assert not compiler.compile(loose(of(**{f"k{i}": same for i in range(40)}))).loosened


def test_what_is_within_a_part_that_became_another_is_found(compiler: GrammarCompiler) -> None:
    """`oneOf` became `anyOf`, and a schema within is refused without a place."""
    compiled = compiler.compile(loose(of(a=OVERLAPPING)))
    assert "$.properties.a.oneOf" in paths(compiled)
    assert all(path.startswith("$.properties.a.oneOf") for path in paths(compiled))


def test_what_is_beside_it_is_enforced(taken: Callable[..., list[str]]) -> None:
    schema = of(a={"type": "string", "pattern": "(?<=x)", "maxLength": 2}, b={"type": "null"})
    good = ['{"a": "uv", "b": null}']
    bad = ['{"a": "uvw", "b": null}', '{"a": "uv", "b": 1}', '{"c": 1}']
    assert taken(loose(schema), [*good, *bad]) == good


def test_what_is_refused_without_a_place_is_found(
    vocabulary: Vocabulary, compiler: GrammarCompiler
) -> None:
    """Two of forty properties take too much work; each is found, the others stay as they are."""
    names = {f"k{i}": {"type": "string", "maxLength": 1} for i in range(40)}
    schema = of(**names | {"k7": HEAVY, "k31": HEAVY})
    with pytest.raises(UnsupportedGrammar, match=r"^\$\.properties\.k7\.minLength: Unable"):
        compiler.compile(Grammar(kind="json_schema", text=json.dumps(schema)))
    compiled = compiler.compile(loose(schema))
    assert sorted(paths(compiled)) == ["$.properties.k31.minLength", "$.properties.k7.minLength"]
    assert accepts(compiled, vocabulary, '{"k0": "u", "k7": "a:b"}')
    assert not accepts(compiled, vocabulary, '{"k0": "uv"}')


def test_a_search_that_met_its_limit_names_no_place(compiler: GrammarCompiler) -> None:
    """What it takes out by then may be no fault of the schema's."""
    schema = of(**dict(list(LOOKING.items())[:30]), h=HEAVY)
    with pytest.raises(UnsupportedGrammar) as refused:
        compiler.compile(Grammar(kind="json_schema", text=json.dumps(schema)))
    assert "$.properties.k" not in refused.value.message


def test_only_the_tool_at_fault_is_loosened(
    vocabulary: Vocabulary, compiler: GrammarCompiler
) -> None:
    good, bad = of(a={"type": "null"}), of(a={"type": "strin"})
    compiled = compiler.compile(lines((good, True), (bad, True)))
    assert [(part.line, part.path) for part in compiled.loosened] == [(3, "$.properties.a.type")]
    assert accepts(compiled, vocabulary, 'f1 {"a": [1]}')
    assert not accepts(compiled, vocabulary, 'f0 {"a": [1]}')


def test_a_strict_tool_beside_is_refused_by_its_line(compiler: GrammarCompiler) -> None:
    bad = of(a={"type": "strin"})
    with pytest.raises(UnsupportedGrammar, match=r"^line 3, .*properties\.a\.type"):
        compiler.compile(lines((bad, True), (bad, False)))


def test_what_was_settled_is_compiled_without_a_search(
    vocabulary: Vocabulary, compiler: GrammarCompiler
) -> None:
    grammar = lines((of(a={"type": "strin"}), True), (of(a=None), True))
    first = compiler.compile(grammar)
    again = compiler.compile(replace(grammar, dropped=first.dropped, is_settled=True))
    assert again.loosened == first.loosened
    assert accepts(again, vocabulary, 'f0 {"a": 1}')
    with pytest.raises(UnsupportedGrammar):  # nothing is searched for now
        compiler.compile(replace(grammar, is_settled=True))


def test_tools_that_are_too_long_together_lose_the_largest(
    vocabulary: Vocabulary, compiler: GrammarCompiler
) -> None:
    small = of(a={"type": "null"})
    large = of(**{f"{'n' * 60}{i}": {"type": "string"} for i in range(900)})
    grammar = lines((small, True), (large, True), (small, False))
    compiled = compiler.compile(grammar)
    [note] = compiled.loosened
    assert (note.line, note.path) == (3, "$")
    assert "bytes, the limit is 65536" in note.reason
    assert accepts(compiled, vocabulary, 'f1 {"b": 1}')
    assert not accepts(compiled, vocabulary, 'f0 {"b": 1}')
    assert fitted(lines((small, True)), SchemaLimits()) == lines((small, True))


def test_bare_grammars_take_any_object(vocabulary: Vocabulary, compiler: GrammarCompiler) -> None:
    small = of(a={"type": "null"})
    bare = all_bare(lines((small, True), (small, False)), "too costly")
    compiled = compiler.compile(bare)
    assert [part.reason for part in compiled.loosened] == ["too costly"]
    assert accepts(compiled, vocabulary, 'f0 {"b": [1]}')
    assert not accepts(compiled, vocabulary, 'f1 {"b": [1]}')


@pytest.mark.parametrize(
    ("schema", "good", "bad"),
    [
        (of(a={"type": "string", "nullable": True}), ['{"a": null}', '{"a": "x"}'], ['{"a": 1}']),
        (
            of(a={"items": [{"type": "null"}], "additionalItems": False, "type": "array"}),
            ['{"a": [null]}', '{"a": []}'],
            ['{"a": [1]}', '{"a": [null, null]}'],
        ),
        (
            of(a={"type": "integer", "minimum": 3, "exclusiveMinimum": True}),
            ['{"a": 4}'],
            ['{"a": 3}'],
        ),
    ],
)
def test_older_spellings_are_enforced_and_no_loss(
    compiler: GrammarCompiler,
    taken: Callable[..., list[str]],
    schema: Any,
    good: list[str],
    bad: list[str],
) -> None:
    assert compiler.compile(loose(schema)).loosened == ()
    assert taken(loose(schema), [*good, *bad]) == good


BOUNDS = [
    *({"type": "integer", "minimum": -(2**53) + 1, "maximum": 2**53 - 1},),
    *({"type": "integer", "minimum": -(2**63), "maximum": 2**63 - 1},),
    *({"type": "integer", "maximum": 9007199254740995}, {"type": "integer", "maximum": 1e20}),
    *({"type": "number", "minimum": -3.4028234663852886e38, "maximum": 3.4028234663852886e38},),
    *({"type": "number", "maximum": 1.7976931348623157e308}, {"type": "number", "minimum": -1e20}),
    *({"type": "integer", "exclusiveMaximum": 2**63 - 1}, {"type": "number", "minimum": 5e-324}),
    *({"type": "number", "maximum": 0.10442422284151531}, {"type": "number", "minimum": 0.3}),
    *({"minimum": math.pi, "maximum": math.pi}, {"type": "number", "exclusiveMaximum": math.pi}),
    *({"type": "number", "exclusiveMinimum": 1e-300}, {"type": "integer", "maximum": 2**64 - 1}),
]
NUMBERS = [
    *(0, 1, -1, 2**53 - 1, 2**53, -(2**53), 9007199254740994, 9007199254740995, 9007199254740996),
    *(2**63 - 1025, 2**63 - 1024, 2**63 - 2, 2**63 - 1, 2**63, -(2**63), -(2**63) + 1024, 10**30),
    *(0.10442422284151532, math.pi),
]


@pytest.mark.parametrize("schema", BOUNDS, ids=json.dumps)
def test_bounds_at_the_ends_of_number_types_are_kept(
    vocabulary: Vocabulary, compiler: GrammarCompiler, schema: dict[str, Any]
) -> None:
    compiled = compiler.compile(Grammar(kind="json_schema", text=json.dumps(schema)))
    validator = jsonschema.Draft202012Validator(schema)
    written = [n for n in NUMBERS if accepts(compiled, vocabulary, str(n))]
    assert [n for n in written if not validator.is_valid(n)] == []
    within = [n for n in NUMBERS if validator.is_valid(n) and abs(n) <= 2**53 - 1]
    assert [n for n in within if n not in written] == []
