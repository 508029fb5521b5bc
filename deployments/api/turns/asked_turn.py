"""Reads the turn that a chat request asks of the assistant, and builds the grammar for it.

Tools, a constraint on the answer and a block of reasoning in front are one grammar. A required or
named call is the whole turn. `auto` leaves text free, or to the request's own constraint, until a
call begins. The request's constraint stands alone if there are no tools and no reasoning.
"""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from deployments.api.schemas.grammar_fields import Constraint, asked_constraint
from deployments.api.schemas.requests import ChatCompletionRequest
from deployments.api.schemas.strict_fields import wrong_field
from deployments.api.schemas.tool_fields import callable_tools, mode_and_names
from models.grammar.limits import Schema
from models.grammar.schema.places import subschemas
from models.protocol.messages import Grammar
from models.text.tokenizer import Tokenizer
from models.text.tools.grammar import tool_line, turn_grammar
from models.text.tools.layout import MAX_CALLS
from models.text.tools.prompt import TurnFormats
from models.text.tools.turn import CallableTool, Turn

# Keywords by which a schema says itself what else its objects may have.
_OPENING_KEYWORDS = frozenset(
    {"additionalProperties", "patternProperties", "unevaluatedProperties", "propertyNames"}
    | {"allOf", "anyOf", "oneOf", "not", "if", "$ref", "minProperties"}
)
_ANNOTATIONS = frozenset({"title", "description", "examples", "default", "$comment", "deprecated"})
_REGEX_PART = re.compile(r"\\(.)|/|\n", re.DOTALL)


@dataclass(frozen=True, slots=True, kw_only=True)
class AskedTurn:
    """A turn as a request asks for it.

    Attributes:
        turn: what it may hold; None: text as it comes.
        grammar: that keeps it to that; None: there is nothing to keep it to.
        fields: the request's fields that the grammar is made of; the first is its own, the others
            are those of its lines from the second on.
        shown_ids: special tokens that are part of its text.
    """

    turn: Turn | None = None
    grammar: Grammar | None = None
    fields: tuple[str, ...] = ()
    shown_ids: tuple[int, ...] = ()


def asked_turn(
    request: ChatCompletionRequest, formats: TurnFormats, tokenizer: Tokenizer, prompt_end: str
) -> AskedTurn:
    """Return the turn after a prompt.

    Args:
        request: with its fields about tools checked.
        formats: of the model.
        tokenizer: of the model.
        prompt_end: the last text of the prompt, which may have opened a block of reasoning.

    Raises:
        InvalidRequest: two constraints, or one that cannot stand beside tools.
    """
    own = asked_constraint(request.response_format, request.structured_outputs)
    turn = _turn(request, formats, prompt_end)
    body = ""
    if own is not None and not turn.must_call:
        body = _body(own.grammar)
        if not body and turn.tools:
            raise wrong_field(own.field, "is not supported together with tools")
        if not body:
            return asked_text(own)
    if not turn.tools and (turn.reasoning is None or turn.reasoning_start == "none"):
        return asked_text(own)
    turn = replace(turn, body=body)
    text = turn_grammar(turn, tokenizer.special_ids)
    chosen = callable_tools(request.tools, request.tool_choice)
    tool_fields = [f"tools[{index}].function.parameters" for index, _ in chosen]
    loose = [tool_line(i) for i, (_, tool) in enumerate(chosen) if not tool.function.is_strict]
    own_fields = () if own is None else (own.field,)
    fields = ("tools" if turn.tools else "".join(own_fields), *tool_fields, *own_fields)
    return AskedTurn(
        turn=turn,
        grammar=Grammar(kind="lark", text=text, loose=tuple(loose)) if text else None,
        fields=fields if text else (),
        shown_ids=_shown_ids(turn, tokenizer.special_ids),
    )


def asked_text(own: Constraint | None) -> AskedTurn:
    """Return a turn that is text as it comes, under the request's own constraint if it has one."""
    return AskedTurn() if own is None else AskedTurn(grammar=own.grammar, fields=(own.field,))


def _turn(request: ChatCompletionRequest, formats: TurnFormats, prompt_end: str) -> Turn:
    mode, _ = mode_and_names(request.tool_choice)
    tools = tuple(
        CallableTool(name=tool.function.name, schema=_arguments_schema(tool.function.parameters))
        for _, tool in callable_tools(request.tools, request.tool_choice)
    )
    is_one = not mode or not request.parallel_tool_calls
    reasoning = formats.reasoning
    return Turn(
        layout=formats.layout,
        tools=tools,
        must_call=bool(tools) and mode != "auto",
        max_calls=1 if is_one or not formats.layout.is_parallel else MAX_CALLS,
        reasoning=reasoning,
        reasoning_start="none" if reasoning is None else reasoning.start_after(prompt_end),
    )


def _arguments_schema(parameters: Any) -> str:
    """Return the JSON text of the schema for a call's arguments.

    A function takes the parameters that its schema lists. If the schema does not say whether there
    may be others, none are written. Descriptions are for the prompt, not for the grammar.
    """
    if isinstance(parameters, list | str | int | float):  # no schema, or `true`: see `loose.py`
        return json.dumps(parameters if parameters is not True else {"type": "object"})
    schema: Schema = copy.deepcopy({"type": "object", **(parameters or {})})
    for _, inner in list(subschemas(schema)):
        for keyword in _ANNOTATIONS & inner.keys():
            del inner[keyword]
    if not _OPENING_KEYWORDS & schema.keys():
        schema["additionalProperties"] = False
    return json.dumps(schema, ensure_ascii=False)


def _body(grammar: Grammar) -> str:
    """Return a constraint as a rule's right side in Lark's notation; "" if it cannot be one."""
    if grammar != Grammar(kind=grammar.kind, text=grammar.text):  # it has options of its own
        return ""
    match grammar.kind:
        case "json_schema":
            return f"%json {grammar.text}"
        case "json_object":
            return '%json {"type": "object"}'
        case "regex":
            return f"/{_REGEX_PART.sub(_escaped, grammar.text)}/"
        case "choice":
            choices = json.loads(grammar.text)
            return " | ".join(json.dumps(choice, ensure_ascii=False) for choice in choices)
        case _:
            return ""


def _escaped(part: re.Match[str]) -> str:
    """Escape a part of a pattern for its place between slashes on one line."""
    if part[0] in ("\n", "\\\n"):
        return "\\n"
    return "\\/" if part[0] == "/" else part[0]


def _shown_ids(turn: Turn, special_ids: Mapping[str, int]) -> tuple[int, ...]:
    layout = turn.layout
    texts = [layout.opening, layout.before_name, layout.before_arguments]
    texts += [layout.after, layout.separator, layout.closing]
    if turn.reasoning is not None:
        texts += [turn.reasoning.begin, turn.reasoning.end]
    return tuple(
        token_id for name, token_id in special_ids.items() if any(name in text for text in texts)
    )
