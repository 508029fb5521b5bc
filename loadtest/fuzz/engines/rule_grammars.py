"""Random grammars with rules (Lark, EBNF), structural tags and turns of tool calls, with oracles.

The grammar's first line, a comment, states the allowed texts in words of Python's `re` and `json`.
The oracles know nothing of the compiler or of its reading of rules. A structural tag is JSON and
needs no such line.
"""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable
from typing import Any

import jsonschema

from models.protocol.messages import Grammar
from models.text.tools.formats import PLAIN_JSON
from models.text.tools.grammar import turn_grammar
from models.text.tools.turn import CallableTool, Turn

KINDS = ("lark", "ebnf", "structural_tag", "tools")
Schema = dict[str, Any]
MakeSchema = Callable[[], Schema]  # makes the schema of an object

_LITERALS = ("ab", "a", "b", "ba", "x-", "0", "é")
_CLASSES = ("[a-c]", "[0-9]", "[xyz]")
_LIST_ITEM = "[a-z]{1,4}|[0-9]{1,3}"
_ITEM = "@"  # stands for a list that was read; no grammar here writes it
_NAMES = ("find", "add_2", "say-it")
_MAX_DEPTH = 3


def random_rules(rng: random.Random, make_schema: MakeSchema) -> Grammar:
    """Return a grammar of one of `KINDS`."""
    match rng.choice(KINDS):
        case "lark":
            return rng.choice((_nested_lark, _json_lark))(rng, make_schema)
        case "ebnf":
            return rng.choice((_nested_ebnf, _regular_ebnf))(rng)
        case "structural_tag":
            return _tags(rng, make_schema)
        case _:
            return _turn(rng, make_schema)


def disobeyed(grammar: Grammar, text: str) -> str:
    """Why a whole text does not obey a grammar of `random_rules`, or ""."""
    if grammar.kind == "structural_tag":
        why = _tags_fault(json.loads(grammar.text), text)
    else:
        oracle = json.loads(grammar.text.split("\n", 1)[0].lstrip("/# "))
        match oracle:
            case {"regex": pattern}:
                why = "" if re.fullmatch(pattern, text) else f"does not match {pattern!r}"
            case {"item": item, "most": most}:
                why = _nested_fault(item, most, text)
            case {"open": opening, "close": closing, "schema": schema}:
                is_framed = text.startswith(opening) and text.endswith(closing)
                inner = text[len(opening) : len(text) - len(closing)]
                why = _json_fault(schema, inner) if is_framed else "is not framed"
            case {"tools": tools, "most": most}:
                why = _calls_fault(tools, most, text)
    return f"{text!r} {why}, by {grammar.text[:400]!r}" if why else ""


# --- lists in lists, which no pattern describes ---------------------------------------------------


def _nested_lark(rng: random.Random, _: MakeSchema) -> Grammar:
    item, most = _LIST_ITEM, rng.randint(2, 4)
    text = (
        f"// {json.dumps({'item': item, 'most': most})}\n"
        f'start: "[" value ("," value){{0,{most - 1}}} "]"\n'
        "value: WORD | NUMBER | start\nWORD: /[a-z]{1,4}/\nNUMBER: /[0-9]{1,3}/\n"
    )
    return Grammar(kind="lark", text=text)


def _nested_ebnf(rng: random.Random) -> Grammar:
    item, most = _LIST_ITEM, rng.randint(2, 4)
    text = (
        f"# {json.dumps({'item': item, 'most': most})}\n"
        f'root ::= "[" value ("," value){{0,{most - 1}}} "]"\n'
        "value ::= [a-z]{1,4} | [0-9]{1,3} | root\n"
    )
    return Grammar(kind="ebnf", text=text)


def _nested_fault(item: str, most: int, text: str) -> str:
    value = f"(?:{item}|{_ITEM})"
    innermost = re.compile(rf"\[{value}(?:,{value}){{0,{most - 1}}}\]")
    rest = text
    while (shorter := innermost.sub(_ITEM, rest)) != rest:
        rest = shorter
    return "" if rest == _ITEM and _ITEM not in text else "is no list of lists"


# --- regular languages, whose parts overlap -------------------------------------------------------


def _regular_ebnf(rng: random.Random) -> Grammar:
    rules: list[str] = []
    body, pattern = _part(rng, rules, 0)
    text = f"# {json.dumps({'regex': pattern})}\nroot ::= {body}\n" + "".join(rules)
    return Grammar(kind="ebnf", text=text)


def _part(rng: random.Random, rules: list[str], depth: int) -> tuple[str, str]:
    """Return a right side in EBNF and the same as a pattern."""
    shape = rng.choice(("literal", "class")) if depth >= _MAX_DEPTH else rng.choice(_SHAPES)
    if shape == "literal":
        word = rng.choice(_LITERALS)
        return json.dumps(word, ensure_ascii=False), re.escape(word)
    if shape == "class":
        chars = rng.choice(_CLASSES)
        return chars, chars
    inner = [_part(rng, rules, depth + 1) for _ in range(rng.randint(2, 3))]
    if shape == "sequence":
        return " ".join(f"({one})" for one, _ in inner), "".join(f"(?:{p})" for _, p in inner)
    if shape == "either":
        return " | ".join(one for one, _ in inner), "|".join(p for _, p in inner)
    body, pattern = inner[0]
    if shape == "rule":
        rules.append(f"r{len(rules)} ::= {body}\n")
        return f"r{len(rules) - 1}", pattern
    least = rng.randint(0, 2)
    times = f"{{{least},{least + rng.randint(0, 3)}}}"
    return f"({body}){times}", f"(?:{pattern}){times}"


_SHAPES = ("literal", "class", "sequence", "either", "rule", "repeated")


# --- JSON within a frame --------------------------------------------------------------------------


def _json_lark(rng: random.Random, make_schema: MakeSchema) -> Grammar:
    opening, closing = rng.choice((("<", ">"), ("call(", ");"), ("-> ", "\n")))
    schema = make_schema()
    oracle = json.dumps({"open": opening, "close": closing, "schema": schema})
    start = f"start: {json.dumps(opening)} inner {json.dumps(closing)}\n"
    return Grammar(kind="lark", text=f"// {oracle}\n{start}inner: %json {json.dumps(schema)}\n")


def _json_fault(schema: Schema, text: str) -> str:
    try:
        jsonschema.Draft202012Validator(schema).validate(json.loads(text))
    except (ValueError, jsonschema.ValidationError) as error:
        return f"holds {text!r}: {str(error).splitlines()[0]}"
    return ""


# --- structural tags ------------------------------------------------------------------------------


def _tags(rng: random.Random, make_schema: MakeSchema) -> Grammar:
    names = rng.sample(_NAMES, rng.randint(1, len(_NAMES)))
    form = {
        "type": "triggered_tags",
        "triggers": ["<call "],
        "at_least_one": rng.random() < 0.7,
        "stop_after_first": rng.random() < 0.5,
        "tags": [
            {
                "begin": f"<call {name}>",
                "end": "</call>",
                "content": {"type": "json_schema", "json_schema": make_schema()},
            }
            for name in names
        ],
    }
    return Grammar(kind="structural_tag", text=json.dumps({"format": form}))


def _tags_fault(tag: dict[str, Any], text: str) -> str:
    form = tag["format"]
    schemas = {one["begin"]: one["content"]["json_schema"] for one in form["tags"]}
    num_tags, rest = 0, text
    while (found := rest.find(form["triggers"][0])) >= 0:
        if form["at_least_one"] and not num_tags and found:
            return f"begins with {rest[:found]!r} and not with a tag"
        rest = rest[found:]
        begin = next((begin for begin in schemas if rest.startswith(begin)), None)
        if begin is None:
            return f"has an unknown tag {rest[:30]!r}"
        content, rest = _json_first(rest[len(begin) :])
        if why := _json_fault(schemas[begin], content):
            return why
        if not rest.startswith("</call>"):
            return f"does not close a tag: {rest[:30]!r}"
        rest = rest.removeprefix("</call>")
        num_tags += 1
        if form["stop_after_first"] and rest:
            return f"goes on after its first tag with {rest[:30]!r}"
    return "has no tag" if form["at_least_one"] and not num_tags else ""


def _json_first(text: str) -> tuple[str, str]:
    """Split a text into the JSON that it begins with, and the rest; "" if there is none."""
    try:
        _, end = json.JSONDecoder().raw_decode(text)
    except ValueError:
        return "", text
    return text[:end], text[end:]


# --- turns of tool calls --------------------------------------------------------------------------


def _turn(rng: random.Random, make_schema: MakeSchema) -> Grammar:
    tools = {name: make_schema() for name in rng.sample(_NAMES, rng.randint(1, len(_NAMES)))}
    most = rng.randint(1, 3)
    turn = Turn(
        layout=PLAIN_JSON,
        tools=tuple(CallableTool(name=name, schema=json.dumps(tools[name])) for name in tools),
        must_call=True,
        max_calls=most,
    )
    oracle = json.dumps({"tools": tools, "most": most})
    return Grammar(kind="lark", text=f"// {oracle}\n{turn_grammar(turn, {})}")


def _calls_fault(tools: dict[str, Schema], most: int, text: str) -> str:
    rest, num_calls = text, 0
    while rest:
        call, rest = _json_first(rest)
        content = json.loads(call or "null")
        if not isinstance(content, dict) or content.keys() != {"name", "arguments"}:
            return f"has {call!r}, which is no call"
        if content["name"] not in tools:
            return f"calls {content['name']!r}"
        if why := _json_fault(tools[content["name"]], json.dumps(content["arguments"])):
            return why
        num_calls += 1
        if rest and not rest.startswith("\n{"):
            return f"goes on with {rest[:30]!r}"
        rest = rest.removeprefix("\n")
    return "" if 1 <= num_calls <= most else f"has {num_calls} calls"
