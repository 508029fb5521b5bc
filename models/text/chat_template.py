"""Renders chat templates in the sandbox and with the settings that transformers uses.

A checkpoint may have one template, or several with names, of which `tool_use` is for conversations
with tools.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, NoReturn

import jinja2
import jinja2.meta
from jinja2.ext import loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment

from models.files import read_text
from models.protocol.errors import InvalidRequest

NO_SETTINGS: Mapping[str, Any] = {}
_DEFAULT, _WITH_TOOLS = "default", "tool_use"
_USER: Mapping[str, str] = {"role": "user", "content": "Hello"}
_SYSTEM: Mapping[str, str] = {"role": "system", "content": "Be brief."}
_TOOL: Mapping[str, Any] = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "The weather of a city.",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string", "description": "its name"}},
            "required": ["city"],
        },
    },
}


def with_files(templates: Any, files: Sequence[Path]) -> list[dict[str, str]]:
    """Return `chat_template` of tokenizer_config.json with templates of files in place of its own.

    Raises:
        ValueError: a file cannot be read, or `templates` are none.
    """
    own = {path.stem.replace("chat_template", _DEFAULT): read_text(path) for path in files}
    return [{"name": name, "template": text} for name, text in (_sources(templates) | own).items()]


class ChatTemplates:
    """The chat templates of one checkpoint. Safe to use from several threads.

    Attributes:
        source: of the template for conversations with tools; empty: there is none.
        takes_tools: whether that one lists tools.
    """

    def __init__(self, templates: Any, special_texts: Mapping[str, str]) -> None:
        """Compile `chat_template` of tokenizer_config.json; special tokens are by role.

        Raises:
            ValueError: that is no template, nor a list of named ones.
        """
        self._special_texts = special_texts
        sources = _sources(templates)
        default = sources.get(_DEFAULT, "")
        self.source: str = sources.get(_WITH_TOOLS, default)
        environment = _environment()
        try:
            self._default = environment.from_string(default) if default else None
            self._with_tools = environment.from_string(self.source) if self.source else None
            names = jinja2.meta.find_undeclared_variables(environment.parse(self.source))
        except jinja2.TemplateSyntaxError as error:
            raise ValueError(
                f"its chat template is no Jinja template: {error.message}, line {error.lineno}"
            ) from None
        self.takes_tools = "tools" in names

    def check(self) -> None:
        """Render what any client may send: a user's turn, and one behind a system's with a tool.

        A template may refuse the second in words of its own (`raise_exception`): some models know
        no system turn.

        Raises:
            ValueError: it fails, or leaves out what the user says.
        """
        if self._default is not None:
            self._tried([_USER], (), "a user's turn")
        if self._with_tools is not None:
            with contextlib.suppress(_Refused):
                self._tried([_SYSTEM, _USER], (), "a system's turn")
            with contextlib.suppress(_Refused):
                self._tried([_USER], [_TOOL], "a turn with a tool")

    def _tried(
        self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]], what: str
    ) -> None:
        template = self._with_tools if tools else self._default
        if template is None:
            return
        try:
            prompt = self._rendered(template, messages, tools, NO_SETTINGS)
        except _Refused as refusal:
            if len(messages) > 1 or tools:
                raise
            raise ValueError(f"its chat template refuses {what}: {refusal}") from None
        except Exception as error:  # noqa: BLE001 - a template may fail in any way
            reason = f"{type(error).__name__}: {error}"
            raise ValueError(f"its chat template fails over {what}: {reason}") from None
        if str(_USER["content"]) not in prompt:
            raise ValueError(f"its chat template leaves out what the user says in {what}")

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] = (),
        settings: Mapping[str, Any] = NO_SETTINGS,
    ) -> str:
        """Return the prompt of a conversation, up to where the assistant's next turn starts.

        Arguments of calls are objects, which most templates want, or JSON texts if that fails.

        Args:
            messages: with `role` and `content`, and what else the template knows.
            tools: that the template lists.
            settings: further variables, such as `enable_thinking`; with `add_generation_prompt`
                false the prompt ends with the last message. One that the template does not know
                has no effect.

        Raises:
            InvalidRequest: there is no template, or it refuses the messages.
        """
        template = self._with_tools if tools else self._default
        if template is None:
            raise InvalidRequest(
                "this model has no chat template; use /v1/completions", param="messages"
            )
        try:
            try:
                return self._rendered(template, messages, tools, settings)
            except TypeError:
                if not any("tool_calls" in message for message in messages):
                    raise
                return self._rendered(template, _with_argument_texts(messages), tools, settings)
        except Exception as error:
            raise InvalidRequest(
                f"messages: the model's chat template refuses them: {error}", param="messages"
            ) from error

    def _rendered(
        self,
        template: jinja2.Template,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]],
        settings: Mapping[str, Any],
    ) -> str:
        variables: dict[str, Any] = {"documents": None, "add_generation_prompt": True}
        variables |= settings
        variables |= {"messages": messages, "tools": list(tools) or None}
        return template.render(variables | dict(self._special_texts))


class _Refused(jinja2.TemplateError):
    """A template's own refusal of what it is given."""


def _sources(templates: Any) -> dict[str, str]:
    """Templates by name."""
    named = templates
    if not isinstance(templates, list):
        named = [{"name": _DEFAULT, "template": templates or ""}]
    for item in named:
        texts = (item.get("name"), item.get("template")) if isinstance(item, Mapping) else (None,)
        if not all(isinstance(text, str) for text in texts):
            raise ValueError(
                "its chat_template must be a text, or a list of objects with name and template, "
                f"got {templates!r:.80}"
            )
    return {item["name"]: item["template"] for item in named}


def _with_argument_texts(messages: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    turns = []
    for message in messages:
        turn = dict(message)
        if "tool_calls" in turn:
            turn["tool_calls"] = [
                {
                    **call,
                    "function": {
                        **call["function"],
                        "arguments": _to_json(call["function"]["arguments"]),
                    },
                }
                for call in turn["tool_calls"]
            ]
        turns.append(turn)
    return turns


def _environment() -> ImmutableSandboxedEnvironment:
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_GenerationTag, loopcontrols]
    )
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = lambda form: datetime.now().strftime(form)
    return environment


class _GenerationTag(jinja2.ext.Extension):
    """`{% generation %}` marks replies for training; here its block is rendered as it is."""

    tags = {"generation"}  # noqa: RUF012 - jinja2 reads a plain set

    def parse(self, parser: jinja2.parser.Parser) -> list[jinja2.nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _raise_exception(message: str) -> NoReturn:
    raise _Refused(message)


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Write JSON like transformers.

    jinja2's own filter would escape HTML.
    """
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )
