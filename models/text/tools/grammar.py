r"""Writes the grammar of a turn, in Lark's notation: reasoning, then text or calls.

    start: FREE | lead calls               text, and from a trigger on nothing but calls
    lead[lazy]: /(?s:.*)/ "<tool_call>"    up to the first trigger
    FREE: /(?s:.*)/ & ~/(?s:.*<tool_call>.*)/

The rule of tool i is on line `tool_line(i)`, so that a complaint about its schema finds it. Special
tokens are no text to the compiler and are written by their ids. Knows layouts, not schemas.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping

from models.text.tools.turn import Turn

MAX_SPACES = 4  # between reasoning and what is not free text


def tool_line(index: int) -> int:
    """Return the line, from 1, that has the rule of a tool."""
    return index + 2


def turn_grammar(turn: Turn, special_ids: Mapping[str, int]) -> str:
    """Return the grammar of a turn.

    It is empty if anything may be written.

    Args:
        turn: what it may hold.
        special_ids: the special tokens of the tokenizer, which are outside its text.
    """
    if not turn.tools and not turn.body:
        return ""
    return _Writer(turn, special_ids).written()


class _Writer:
    def __init__(self, turn: Turn, special_ids: Mapping[str, int]) -> None:
        self._turn = turn
        self._special_ids = special_ids
        self._rules: list[str] = []  # beside those of tools

    def written(self) -> str:
        turn = self._turn
        options = []
        if turn.body:
            self._rules.append(f"body: {turn.body}")
            options.append("body")
        elif turn.begins_free:
            options.append("FREE")
        if turn.tools:
            options.append(self._calls())
        start = _sequence(self._reasoning(), f"({' | '.join(options)})")
        tools = [
            f"call_{index}: {self._literal(tool.name + turn.layout.before_arguments)} "
            f"%json {tool.schema}"
            for index, tool in enumerate(turn.tools)
        ]
        return "\n".join([f"start: {start}", *tools, *self._rules, ""])

    def _calls(self) -> str:
        """Write the calls, and the text before them if there may be some."""
        turn, layout = self._turn, self._turn.layout
        self._rules.append("call: " + " | ".join(f"call_{i}" for i in range(len(turn.tools))))
        head = layout.opening + layout.before_name
        first = self._literal(head)
        if turn.begins_free:
            first = _sequence(self._lead(), self._literal(head.removeprefix(layout.trigger)))
        parts = [first, "call", self._literal(layout.after)]
        if turn.max_calls > 1:
            again = self._literal(layout.separator + layout.before_name)
            another = _sequence(again, "call", self._literal(layout.after))
            parts.append(f"({another}){{0,{turn.max_calls - 1}}}")
        return _sequence(*parts, self._literal(layout.closing))

    def _lead(self) -> str:
        """Free text up to the trigger of a call, that included; and free text without one.

        The trigger spelt out is one too where it is a special token: the reader sees text.
        """
        layout = self._turn.layout
        before = "(?:.*\\n)?" if layout.begins_line else ".*"
        not_reasoning = ""
        if self._turn.reasoning is not None and self._turn.reasoning_start == "optional":
            not_reasoning = f" & ~/(?s:{_pattern(self._turn.reasoning.begin)}.*)/"
        not_calling = f"& ~/(?s:{before}{_pattern(layout.trigger)}.*)/"
        self._rules.append(f"FREE: /(?s:.*)/{not_reasoning} {not_calling}")
        trigger = self._literal(layout.trigger)
        if layout.trigger in self._special_ids:
            return f"FREE? {trigger}"
        self._rules.append(f"BEFORE: /(?s:{before})/{not_reasoning}")
        self._rules.append(f"lead[lazy]: BEFORE {trigger}")
        return "lead"

    def _reasoning(self) -> str:
        turn = self._turn
        if turn.reasoning is None or turn.reasoning_start == "none":
            return ""
        is_open = turn.reasoning_start == "open"
        begin = "" if is_open else self._literal(turn.reasoning.begin)
        end = self._literal(turn.reasoning.end)
        if turn.reasoning.end in self._special_ids:
            not_ended = f"~/(?s:.*{_pattern(turn.reasoning.end)}.*)/"
            self._rules.append(f"THOUGHT: /(?s:.*)/ & {not_ended}")
            block = _sequence(begin, "THOUGHT?", end)
        else:
            self._rules.append(f"thought[lazy]: /(?s:.*)/ {end}")
            block = _sequence(begin, "thought")
        whole = block if turn.begins_free else f"{block} /[ \\n]{{0,{MAX_SPACES}}}/"
        return whole if is_open else f"({whole})?"

    def _literal(self, text: str) -> str:
        """Write the text as strings and special tokens."""
        names = [name for name in self._special_ids if name in text]
        if not names:
            return json.dumps(text, ensure_ascii=False) if text else ""
        pattern = "|".join(re.escape(name) for name in sorted(names, key=len, reverse=True))
        return " ".join(
            f"<[{self._special_ids[part]}]>"
            if part in self._special_ids
            else json.dumps(part, ensure_ascii=False)
            for part in re.split(f"({pattern})", text)
            if part
        )


def _sequence(*parts: str) -> str:
    return " ".join(part for part in parts if part)


def _pattern(text: str) -> str:
    return re.escape(text).replace("/", "\\/")
