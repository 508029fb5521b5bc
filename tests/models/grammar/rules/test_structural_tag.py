"""Structural tags: free text, triggers and what must follow them, in both spellings."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from typing import Any

import pytest

from models.grammar.compiler import GrammarCompiler
from models.protocol.messages import Grammar
from tests.cases.grammar import Vocabulary, random_text
from tests.cases.rules import refusal

CLOSED = {"type": "object", "additionalProperties": False}
CITY = {**CLOSED, "properties": {"city": {"type": "string"}}, "required": ["city"]}


def tag_of(value: object) -> Grammar:
    return Grammar(kind="structural_tag", text=json.dumps(value))


def form(value: object) -> Grammar:
    return tag_of({"type": "structural_tag", "format": value})


def of(kind: str, **fields: Any) -> dict[str, Any]:
    return {"type": kind, **fields}


def schema(value: object = CLOSED, **fields: Any) -> dict[str, Any]:
    return of("json_schema", json_schema=value, **fields)


def tag(begin: object, end: object = "</f>", content: object = None) -> dict[str, Any]:
    return of("tag", begin=begin, content=content or schema(), end=end)


def const(value: str) -> dict[str, Any]:
    return of("const_string", value=value)


ANY = of("any_text")
CITY_TAG, TIME_TAG = tag("<f=city>", content=schema(CITY)), tag("<f=time>")


def triggered(**fields: Any) -> dict[str, Any]:
    return of("triggered_tags", **{"triggers": ["<f="], "tags": [CITY_TAG, TIME_TAG], **fields})


def listed(**fields: Any) -> dict[str, Any]:
    return of("tags_with_separator", tags=[CITY_TAG, TIME_TAG], separator="\n", **fields)


PAD = of("token", token="<|pad|>")
OLDER = {
    "type": "structural_tag",
    "structures": [
        {"begin": "<f=city>", "schema": CITY, "end": "</f>"},
        {"begin": "<f=time>", "schema": CLOSED, "end": "</f>"},
    ],
    "triggers": ["<f="],
}
CITY_CALL, TIME_CALL = '<f=city>{"city": "Ulm"}</f>', "<f=time>{}</f>"


@pytest.mark.parametrize(
    ("grammar", "good", "bad"),
    [
        (
            tag_of(OLDER),
            ["", "hm <f", "so: " + CITY_CALL + " and " + TIME_CALL, CITY_CALL * 2, "</f>"],
            ["<f=", "a <f=city>{}</f>", "<f=time>{", "<f=zone>{}</f>", "a<f= b"],
        ),
        (form(triggered()), ["", "x" + TIME_CALL + "y", "<g"], ["<f=", "<f=time>x</f>"]),
        (
            form(triggered(at_least_one=True)),
            [TIME_CALL, TIME_CALL + "text" + CITY_CALL],
            ["", "text", "text" + TIME_CALL],
        ),
        (
            form(triggered(stop_after_first=True)),
            ["", "text", "text" + TIME_CALL],
            [TIME_CALL + "x", TIME_CALL * 2],
        ),
        (
            form(triggered(at_least_one=True, stop_after_first=True)),
            [TIME_CALL, CITY_CALL],
            ["", TIME_CALL * 2, "a" + TIME_CALL],
        ),
        (form(triggered(excludes=["no"])), ["n", "yes" + TIME_CALL], ["no", TIME_CALL + "not"]),
        (
            form(listed()),
            ["", TIME_CALL, TIME_CALL + "\n" + CITY_CALL],
            [TIME_CALL + "\n", TIME_CALL * 2, "a"],
        ),
        (form(listed(at_least_one=True)), [TIME_CALL], [""]),
        (
            form(listed(stop_after_first=True)),
            ["", TIME_CALL],
            [TIME_CALL + "\n" + TIME_CALL],
        ),
        (
            form(of("sequence", elements=[tag("<t>", "</t>", ANY), triggered()])),
            ["<t></t>", "<t>a <f= b</t>then " + TIME_CALL],
            ["", "<t>a", "then" + TIME_CALL],
        ),
        (
            form(tag("<r>", "</r>", triggered(excludes=["</r>"]))),
            ["<r></r>", "<r>a" + TIME_CALL + "b</r>"],
            ["<r>a" + TIME_CALL, "<r></r>a"],
        ),
        (
            form(tag("<r>", "</r>", triggered(stop_after_first=True))),
            ["<r>a</r>", "<r>a" + TIME_CALL + "</r>"],
            ["<r>a" + TIME_CALL + "b</r>"],
        ),
        (
            form(tag("<a>", ["</a>", "</b>"], {**ANY, "excludes": ["no"]})),
            ["<a>x</a>", "<a></b>"],
            ["<a>not</a>", "<a>x</a></b>"],
        ),
        (
            form(of("dispatch", rules=[["[a]", schema()], ["[b]", const("ok")]], loop=True)),
            ["x[b]ok[a]{}y"],
            ["[b]no", "[a]"],
        ),
        (
            form(of("dispatch", rules=[["[b]", const("ok")]], loop=False)),
            ["x", "x[b]ok"],
            ["x[b]okx"],
        ),
        (
            form(
                of(
                    "sequence",
                    elements=[
                        of("regex", pattern="[a-z]+"),
                        const("xy"),
                        of("grammar", grammar='root ::= "(" root ")" | "1"'),
                    ],
                )
            ),
            ["abxy1", "xyxy((1))"],
            ["xy1", "abx1"],
        ),
        (
            form(of("or", elements=[const("a"), const("b"), schema({"const": 3})])),
            ["a", "b", "3"],
            ["", "ab"],
        ),
        (form(of("repeat", min=1, max=2, content=const("ab"))), ["ab"], ["ababab"]),
        (form(of("repeat", min=2, max=-1, content=const("a"))), ["aaaa"], ["a"]),
        (form(of("optional", content=const("ab"))), ["", "ab"], ["abab"]),
        (form(of("plus", content=const("ab"))), ["ab", "abab"], [""]),
        (form(of("star", content=const("ab"))), ["", "abab"], ["a"]),
        (form(ANY), ["", "a\n\u00e9"], ["<|pad|>"]),
        (
            form(
                of(
                    "token_triggered_tags",
                    trigger_tokens=["<|pad|>"],
                    exclude_tokens=[2],
                    tags=[tag(PAD, PAD)],
                )
            ),
            ["", "abc", "a<|pad|>{}<|pad|>b<|pad|>{}<|pad|>"],
            ["<|pad|>", "<|pad|>{}"],
        ),
        (form(tag(PAD, of("token", token=2), ANY)), ["<|pad|>ab<|pad|>"], ["ab"]),
    ],
)
def test_what_a_structural_tag_means(
    taken: Callable[..., list[str]], grammar: Grammar, good: list[str], bad: list[str]
) -> None:
    assert taken(grammar, [*good, *bad]) == good


def test_exactly_one_of_many_calls_always_parses(
    vocabulary: Vocabulary, compiler: GrammarCompiler
) -> None:
    compiled = compiler.compile(form(triggered(at_least_one=True, stop_after_first=True)))
    rng = random.Random(1)
    for _ in range(10):
        text = vocabulary.decode(random_text(compiled, vocabulary, rng))
        name, _, rest = text.removeprefix("<f=").partition(">")
        arguments = json.loads(rest.removesuffix("</f>"))
        assert set(arguments) == {"city": {"city"}, "time": set()}[name]


@pytest.mark.parametrize(
    ("grammar", "reason"),
    [
        (Grammar(kind="structural_tag", text="{"), "the structural tag is not JSON"),
        (Grammar(kind="structural_tag", text="[" * 60_000), "nests too deep"),
        (tag_of(3), "$: must be an object"),
        (tag_of({"type": "other"}), "$.type: must be 'structural_tag'"),
        (tag_of({}), "$.structures: is required"),
        (tag_of({**OLDER, "more": 1}), "$.more: unknown field"),
        (tag_of({**OLDER, "triggers": ["<g"]}), "$.tags[0].begin: must begin with one of"),
        (form(of("xml")), "$.format.type: the format 'xml' is not supported"),
        (form({**const("a"), "end": 1}), "$.format.end: unknown field"),
        (form(const("a") | {"value": 3}), "$.format.value: must be a string"),
        (form(schema(style="qwen_xml")), "$.format.style: is not supported"),
        (form(schema(any_order=True)), "$.format.any_order: is not supported"),
        (form(schema({"type": "no"})), "$.format.json_schema: $.type: must be one or several of"),
        (form({**ANY, "max_tokens": 3}), "$.format.max_tokens: is not supported"),
        (form(of("any_tokens", max_tokens=3)), "$.format.max_tokens: is not supported"),
        (form(of("regex", pattern="a(?=b)")), "$.format.pattern: position 1: look-ahead"),
        (form(of("grammar", grammar="start: x")), "$.format.grammar: line 1"),
        (
            form(of("or", elements=[const("a"), ANY])),
            "$.format.elements[1]: free text is only supported at the end",
        ),
        (
            form(of("sequence", elements=[ANY, const("a")])),
            "$.format.elements[0]: free text is only supported at the end",
        ),
        (form(tag("<a>", "", ANY)), "$.format.content: free text is only supported"),
        (form(triggered(triggers=["<f=", "<f=ci"])), "'<f=' and '<f=ci' overlap"),
        (form(triggered(triggers=["<f=", "<g="])), "no tag begins with '<g='"),
        (form(triggered(triggers=[""])), "$.format.triggers[0]: must be a string that is not"),
        (form(triggered(triggers=["x" * 300])), "must have 1 to 256 characters"),
        (form(triggered(triggers=[str(i) for i in range(65)])), "65 texts, the limit is 64"),
        (form(triggered(tags=[])), "$.format.tags: must have one tag at least"),
        (
            form(of("repeat", min=2, max=1, content=const("a"))),
            "$.format: min and max must be 0 to 10000",
        ),
        (
            form(of("token", token="<|end|>")),
            "$.format.token: <|end|> is no special token within a text",
        ),
        (form(of("token", token=99)), "$.format.token: 99 is no special token"),
        (form(of("token", token=10**30)), "is no special token"),
        (form(of("token_dispatch")), "the format 'token_dispatch' is not supported"),
        (
            form(of("or", elements=[const("a")] * 1001)),
            "more than 1000 formats, which is the limit",
        ),
    ],
)
def test_refusals_name_the_place(compiler: GrammarCompiler, grammar: Grammar, reason: str) -> None:
    assert reason in refusal(compiler, grammar)


def test_formats_nest_only_so_deep(compiler: GrammarCompiler) -> None:
    value: dict[str, Any] = const("a")
    for _ in range(50):
        value = of("optional", content=value)
    assert "formats nest more than 48 deep" in refusal(compiler, form(value))
