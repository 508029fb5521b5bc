from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path

import jsonschema
import pytest
from tokenizers import Tokenizer

from models.grammar.compiler import GrammarCompiler, VocabularyInfo
from models.grammar.limits import ParserLimits
from models.grammar.state import MatcherBroken, walk_rows
from models.protocol.errors import UnsupportedGrammar
from models.protocol.messages import Grammar
from tests.cases.constraint import CONSTRAINTS, check_obeys
from tests.cases.grammar import (
    EOS_IDS,
    PADDED_VOCAB_SIZE,
    TEN_SCHEMAS,
    Vocabulary,
    allowed,
    json_schema,
    random_text,
)

DEMO_TOKENIZER = Path(__file__).parents[3] / "models" / "demo" / "target" / "tokenizer.json"
# Not date and date-time, where a checker for them is installed: to the compiler 29 February is a
# day of every year. By JSON schema a format is a remark, not a rule.
FORMATS = jsonschema.FormatChecker(
    formats=set(jsonschema.FormatChecker.checkers) - {"date", "date-time"}
)


@pytest.fixture(scope="module")
def demo_vocabulary() -> Vocabulary:
    tokenizer = Tokenizer.from_file(str(DEMO_TOKENIZER))
    size = tokenizer.get_vocab_size()
    eos_ids = tuple(i for i, t in tokenizer.get_added_tokens_decoder().items() if t.special)
    return Vocabulary(tokenizer, size, eos_ids[:1])


def check_walks(vocabulary: Vocabulary, schema: object, num_walks: int) -> set[str]:
    compiled = vocabulary.compiler().compile(json_schema(schema))
    texts = set()
    for seed in range(num_walks):
        text = vocabulary.decode(random_text(compiled, vocabulary, random.Random(seed)))
        jsonschema.validate(json.loads(text), schema, format_checker=FORMATS)
        assert "\n" not in text
        texts.add(text)
    return texts


@pytest.mark.parametrize("name", TEN_SCHEMAS)
def test_random_walks_end_in_valid_json(vocabulary: Vocabulary, name: str) -> None:
    texts = check_walks(vocabulary, TEN_SCHEMAS[name], 15)
    assert len(texts) > 1 or name == "const"


@pytest.mark.parametrize("name", CONSTRAINTS)
def test_random_walks_of_the_demo_tokenizer_obey(demo_vocabulary: Vocabulary, name: str) -> None:
    compiled = demo_vocabulary.compiler().compile(CONSTRAINTS[name])
    for seed in range(5):
        ids = random_text(compiled, demo_vocabulary, random.Random(seed))
        check_obeys(CONSTRAINTS[name], demo_vocabulary.decode(ids))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("nested", {"user": {"name": "Zo\u00eb", "address": {"zip": 1, "home": True}}}),
        ("unicode", {"gr\u00f6\u00dfe": "\U0001f600", "\u540d\u524d": "\u65e5\u672c\u8a9e"}),
        ("const", {"kind": "point", "at": [1, 2.5, {"a": '"q"'}]}),
        ("ref", {"value": None, "next": {"value": None, "next": None}}),
        ("optional", {"b": True}),
    ],
)
def test_accepts_what_json_dumps_writes_and_no_other_whitespace(
    taken: Callable[..., list[str]], name: str, value: object
) -> None:
    text = json.dumps(value, ensure_ascii=False)
    others = [
        text.replace(": ", ":"),
        text.replace("{", "{ "),
        text.replace("}", " }"),
        f"\n{text}",
    ]
    assert taken(json_schema(TEN_SCHEMAS[name]), [text, *others]) == [text]


def test_complete_text_allows_exactly_eos(
    vocabulary: Vocabulary, compiler: GrammarCompiler
) -> None:
    state = compiler.compile(json_schema(TEN_SCHEMAS["optional"])).start()
    for token in vocabulary.encode('{"b": true'):
        assert state.advance(token)
    assert not state.is_complete
    assert not set(EOS_IDS) & set(allowed(state.row()))
    assert not state.advance(EOS_IDS[0])
    assert state.advance(*vocabulary.encode("}"))
    assert allowed(state.row()) == list(EOS_IDS)
    for eos in EOS_IDS:
        ended = state.copy()
        assert ended.advance(eos)
        assert ended.is_complete
        assert allowed(ended.row()) == []
        assert not ended.advance(EOS_IDS[0])
        assert not ended.advance(vocabulary.encode("}")[0])


@pytest.mark.parametrize(
    ("grammar", "text", "ends"),
    [
        (json_schema({"type": "integer"}), "71", ["no", "may", "may"]),
        (Grammar(kind="lark", text='start: "a"+'), "a", ["no", "may"]),
        (Grammar(kind="regex", text="(?:ab)*"), "ab", ["may", "no", "may"]),
        (
            Grammar(kind="choice", text='["a", "ab", "abcd"]'),
            "abcd",
            ["no", "may", "may", "no", "must"],
        ),
    ],
    ids=["json", "lark", "regex", "choice"],
)
def test_eos_is_allowed_exactly_where_a_text_may_end(
    vocabulary: Vocabulary,
    compiler: GrammarCompiler,
    grammar: Grammar,
    text: str,
    ends: list[str],
) -> None:
    """Before each letter, and behind the last."""
    state = compiler.compile(grammar).start()
    found = []
    for token in [*(vocabulary.encode(letter)[0] for letter in text), None]:
        ids, ended = set(allowed(state.row())), state.copy()
        if ended.advance(EOS_IDS[1]):
            assert set(EOS_IDS) <= ids
            assert allowed(ended.row()) == []
            found.append("may" if ids > set(EOS_IDS) else "must")
        else:
            assert not set(EOS_IDS) & ids
            found.append("no")
        assert token is None or state.advance(token)
    assert found == ends


def test_truncate_over_an_eos_and_to_the_start(
    vocabulary: Vocabulary, compiler: GrammarCompiler
) -> None:
    state = compiler.compile(json_schema(TEN_SCHEMAS["optional"])).start()
    ids = [*vocabulary.encode('{"b": true}'), EOS_IDS[1]]
    rows = []
    for token in ids:
        rows.append(state.row())
        assert state.advance(token)
    for length in range(len(ids) - 1, -1, -1):
        state.truncate(length)
        assert len(state) == length
        assert state.row() == rows[length]
    with pytest.raises(ValueError, match="-1"):
        state.truncate(-1)
    assert state.row() == rows[0]


def test_illegal_tokens_leave_the_state_as_it_was(compiler: GrammarCompiler) -> None:
    state = compiler.compile(json_schema(TEN_SCHEMAS["optional"])).start()
    before = state.row()
    legal = set(allowed(before))
    for token in (-1, 2, 399, 639, 640, 10**6, 2**40):
        assert token not in legal
        assert not state.advance(token)
    assert state.row() == before


def test_padding_is_never_allowed(vocabulary: Vocabulary, compiler: GrammarCompiler) -> None:
    size = vocabulary.tokenizer.get_vocab_size()
    assert size < PADDED_VOCAB_SIZE
    state = compiler.compile(json_schema({"type": "string"})).start()
    assert state.advance(*vocabulary.encode('"'))
    row = state.row()
    assert len(row) == compiler.row_bytes == PADDED_VOCAB_SIZE // 8
    assert max(allowed(row)) < size


@pytest.mark.parametrize("vocab_size", [400, 417, 640, 641])
def test_rows_are_whole_words(vocabulary: Vocabulary, vocab_size: int) -> None:
    size = max(vocab_size, vocabulary.tokenizer.get_vocab_size())
    compiler = Vocabulary(vocabulary.tokenizer, size, EOS_IDS).compiler()
    row = compiler.compile(json_schema({})).start().row()
    assert len(row) == compiler.row_bytes == (size + 31) // 32 * 4


@pytest.mark.parametrize("name", ["nested", "any_of", "array", "unicode"])
def test_rows_along_a_chain_equal_single_steps(
    vocabulary: Vocabulary, compiler: GrammarCompiler, name: str
) -> None:
    compiled = compiler.compile(json_schema(TEN_SCHEMAS[name]))
    ids = random_text(compiled, vocabulary, random.Random(3))
    chain = [*ids, EOS_IDS[0]]
    expected = []
    state = compiled.start()
    for token in chain:
        expected.append(state.row())
        assert state.advance(token)
    for first in range(0, len(chain) + 1, 3):
        # The state behind the eos has no row.
        assert walk_rows(compiled.start(), chain, first) == expected[first:]


def test_rows_end_before_an_illegal_token(
    vocabulary: Vocabulary, compiler: GrammarCompiler
) -> None:
    compiled = compiler.compile(json_schema(TEN_SCHEMAS["optional"]))
    good = vocabulary.encode('{"b": tr')
    bad = vocabulary.encode("x")
    rows = walk_rows(compiled.start(), [*good, *bad, *good], 0)
    assert len(rows) == len(good) + 1
    assert rows == walk_rows(compiled.start(), good, 0)
    assert walk_rows(compiled.start(), [*bad, *good], 2) == []


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("{", "not JSON"),
        ("", "not JSON"),
        ('{"maximum": NaN}', "NaN"),
        ("[]", "an array"),
        ('"string"', "a string"),
        ("3", "a number"),
        ("null", "null"),
        ("false", "allows nothing"),
        ('{"enum": []}', "$.enum: must be a list of one or more values (got [])"),
        ('{"maxLength": null}', "$.maxLength: must be a whole number from 0 to 2^63 (got null)"),
        ('{"properties": {"a": 5}}', "$.properties.a: must be an object or a boolean (got 5)"),
        ('{"minimum": 1e19}', "$.minimum: 1e+19 leaves no number within 2^63"),
        ('{"type": "object", "x-guidance": {"lenient": true}, "not": {}}', "x-guidance"),
        ('{"properties": {"a": {"items": {"not": {"const": 1}}}}}', "$.properties.a.items.not"),
        ('{"properties": {"not": {"uniqueItems": true}}}', "$.properties.not.uniqueItems"),
        ('{"anyOf": [{"type": "null"}, {"type": "foo"}]}', "$.anyOf[1].type"),
        ('{"properties": {"a b": {"type": "string", "pattern": "(?<=a)b"}}}', '["a b"].pattern'),
        ('{"items": {"$ref": "http://example.com/x.json"}}', "$.items.$ref"),
        ('{"items": {"$ref": "#/$defs/none"}}', "$.items.$ref"),
        ('{"oneOf": [{"type": "string"}, {"minLength": 2}]}', "$.oneOf"),
        ('{"items": [{"type": "foo"}]}', "$.items[0].type: must be"),
        ('{"type": "integer", "exclusiveMinimum": true}', "$.exclusiveMinimum: must be a number"),
        ('{"type": "integer", "multipleOf": 999983}', "10000"),
        ('{"maximum": 1e999}', "1e999 is out of the range"),
        ('{"const": "\\ud800"}', "JSON"),
    ],
)
def test_refusals_name_the_place(compiler: GrammarCompiler, text: str, part: str) -> None:
    with pytest.raises(UnsupportedGrammar) as caught:
        compiler.compile(Grammar(kind="json_schema", text=text))
    assert part in caught.value.message
    assert caught.value.param is None  # only HTTP knows how the client spelt the field
    assert "\n" not in caught.value.message


def test_a_oneof_that_excludes_itself_is_served(vocabulary: Vocabulary) -> None:
    check_walks(vocabulary, {"oneOf": [{"type": "string", "maxLength": 3}, {"type": "null"}]}, 10)


@pytest.mark.parametrize("text", ["true", "{}"])
def test_schema_without_constraints_is_any_json(
    vocabulary: Vocabulary, compiler: GrammarCompiler, text: str
) -> None:
    compiled = compiler.compile(Grammar(kind="json_schema", text=text))
    for seed in range(5):
        json.loads(vocabulary.decode(random_text(compiled, vocabulary, random.Random(seed))))


def test_a_matcher_over_its_limits_says_so(vocabulary: Vocabulary) -> None:
    # Compiles, and breaks where many keys may follow: the limit is lowered for this test.
    many = {f"k{i}": {"type": "integer"} for i in range(300)}
    schema = {"type": "array", "items": {"type": "object", "properties": many}}
    compiler = vocabulary.compiler(parser_limits=ParserLimits(step_max_items=400))
    state = compiler.compile(json_schema(schema)).start()
    with pytest.raises(MatcherBroken, match="limit 400"):
        walk_rows(state, vocabulary.encode('[{"k7": 1, "k'), 0)


@pytest.mark.parametrize(
    ("vocab_size", "eos_ids"), [(300, (0,)), (640, ()), (640, (640,)), (640, (-1,))]
)
def test_vocabulary_that_does_not_fit_is_refused(
    vocabulary: Vocabulary, vocab_size: int, eos_ids: tuple[int, ...]
) -> None:
    text = vocabulary.tokenizer.to_str()
    with pytest.raises(ValueError, match=r"eos_ids|vocab"):
        GrammarCompiler(VocabularyInfo(text, vocab_size, eos_ids))
