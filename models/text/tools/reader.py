"""Reads a turn of the assistant as its text comes: reasoning, text, calls and their arguments.

The joined output does not depend on the cut of the text. Text whose meaning may still change is
held back. White space around a block of reasoning and before calls is no part of the text. The
grammar of the turn (`grammar.py`) ensures that a free text which begins as a call goes on as one. A
body may begin like a call too: it is one with a tool's whole head. If a turn was cut off, the
beginning of the last call's arguments has come out.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from models.text.overlap import overlap
from models.text.tools.grammar import MAX_SPACES
from models.text.tools.layout import NAME_PATTERN
from models.text.tools.turn import Turn

_OUTSIDE = re.compile(r'["{}\[\]]')
_INSIDE = re.compile(r'["\\]')
_NAME_PART = re.compile(NAME_PATTERN)


@dataclass(frozen=True, slots=True)
class Said:
    """Some of the turn's text."""

    text: str


@dataclass(frozen=True, slots=True)
class Thought:
    """Some of the turn's reasoning."""

    text: str


@dataclass(frozen=True, slots=True)
class CallBegun:
    """A call, whose arguments follow; `index` counts the turn's calls from 0."""

    index: int
    name: str


@dataclass(frozen=True, slots=True)
class ArgumentsPart:
    """Some of the JSON text of a call's arguments."""

    index: int
    text: str


Piece = Said | Thought | CallBegun | ArgumentsPart


class TurnReader:
    """Reads one turn."""

    def __init__(self, turn: Turn) -> None:
        self._turn = turn
        self._layout = turn.layout
        self._held = ""
        self._pieces: list[Piece] = []
        self._is_blank = True  # nothing but white space came of the present block
        self._before = "\n"  # the character before what is held, in the present block
        self._num_begun = 0
        self._num_pushed = self._num_reasoning = 0  # characters
        self._json = _JsonEnd()
        self.num_calls = 0  # calls whose arguments are whole
        layout = turn.layout
        first = layout.opening + layout.before_name
        self._heads = [first + tool.name + layout.before_arguments for tool in turn.tools]
        self._step: Callable[[], bool] = self._begin()
        if turn.reasoning is not None and turn.reasoning_start != "none":
            self._step = self._maybe_reasoning

    def push(self, text: str) -> list[Piece]:
        """Return the pieces that this further text completes, in order."""
        self._held += text
        self._num_pushed += len(text)
        while self._held and self._step():
            pass
        return self._taken()

    def end(self) -> list[Piece]:
        """Return the held text as text or reasoning, now that nothing follows."""
        is_open = self._turn.reasoning_start == "open" and self._step == self._maybe_reasoning
        if self._step == self._reasoning or is_open:
            self._say(Thought, self._held.rstrip())
        elif self._step in (self._text, self._maybe_reasoning):
            self._say(Said, self._held)
        elif self._step == self._body and self._held:
            self._rest()
        self._held = ""
        return self._taken()

    @property
    def num_reasoning_chars(self) -> int:
        """Characters of the block of reasoning that have come, its tags included."""
        return self._num_pushed if self._step == self._reasoning else self._num_reasoning

    def _taken(self) -> list[Piece]:
        taken, self._pieces = self._pieces, []
        return taken

    def _say(self, kind: type[Said] | type[Thought], text: str) -> None:
        if text and (self._turn.reasoning is not None or self._turn.tools) and self._is_blank:
            text = text.lstrip()
        if text:
            self._is_blank = False
            self._pieces.append(kind(text))

    # A step takes what it can of the held text; False: it needs more text.

    def _maybe_reasoning(self) -> bool:
        assert self._turn.reasoning is not None
        begin = self._turn.reasoning.begin
        if begin.startswith(self._held) and begin != self._held:
            return False
        if self._held.startswith(begin):
            self._held = self._held[len(begin) :]
            self._step = self._reasoning
        else:
            is_open = self._turn.reasoning_start == "open"
            self._step = self._reasoning if is_open else self._begin()
        return True

    def _begin(self) -> Callable[[], bool]:
        """Return the step for what is behind a block of reasoning, if there is one."""
        if self._turn.must_call:
            return self._first_call
        return self._body if self._turn.body else self._text

    def _spaces(self) -> bool:
        """Leave out what the grammar allows between reasoning and what is not free text."""
        rest = self._held.lstrip(" \n")
        num_spaces = min(len(self._held) - len(rest), MAX_SPACES)
        if not rest and num_spaces < MAX_SPACES:
            return False
        self._held, self._step = self._held[num_spaces:], self._begin()
        return True

    def _body(self) -> bool:
        """Tell a call from what stands in the place of free text, which may begin like one."""
        if any(self._held.startswith(head) for head in self._heads):
            self._step = self._first_call
            return True
        if any(head.startswith(self._held) for head in self._heads):
            return False
        self._step = self._rest
        return True

    def _rest(self) -> bool:
        """Take all that comes as the text that was asked for, white space included."""
        self._pieces.append(Said(self._held))
        self._held = ""
        return False

    def _reasoning(self) -> bool:
        assert self._turn.reasoning is not None
        end = self._turn.reasoning.end
        found = self._held.find(end)
        if found >= 0:
            self._say(Thought, self._held[:found].rstrip())
            self._held = self._held[found + len(end) :]
            self._num_reasoning = self._num_pushed - len(self._held)
            self._is_blank = True
            self._step = self._text if self._turn.begins_free else self._spaces
            return True
        safe = len(self._held) - overlap(self._held, end)
        safe = len(self._held[:safe].rstrip())
        self._say(Thought, self._held[:safe])
        self._held = self._held[safe:]
        return False

    def _text(self) -> bool:
        if not self._turn.tools:
            self._say(Said, self._held)
            self._held = ""
            return False
        found = self._trigger_at()
        if found >= 0:
            self._say(Said, self._held[:found].rstrip())
            self._held = self._held[found:]
            self._step = self._first_call
            return True
        safe = self._line_safe(len(self._held) - overlap(self._held, self._layout.trigger))
        if safe:
            self._before = self._held[safe - 1]
            self._say(Said, self._held[:safe])
            self._held = self._held[safe:]
        return False

    def _trigger_at(self) -> int:
        at = self._held.find(self._layout.trigger)
        while at >= 0 and not self._counts(at):
            at = self._held.find(self._layout.trigger, at + 1)
        return at

    def _counts(self, at: int) -> bool:
        """Return whether the text at this place is a trigger."""
        return not self._layout.begins_line or (self._held[at - 1] if at else self._before) == "\n"

    def _line_safe(self, safe: int) -> int:
        """Return how much of the held text can go.

        White space that may be before a call stays.
        """
        return len(self._held[:safe].rstrip())

    def _first_call(self) -> bool:
        if not self._takes(self._layout.opening + self._layout.before_name):
            return False
        self._step = self._name
        return True

    def _name(self) -> bool:
        found = _NAME_PART.match(self._held)
        end = 0 if found is None else found.end()
        rest, mark = self._held[end:], self._layout.before_arguments
        if not rest.startswith(mark):
            return False
        self._pieces.append(CallBegun(self._num_begun, self._held[:end]))
        self._num_begun += 1
        self._held = rest[len(mark) :]
        self._json = _JsonEnd()
        self._step = self._arguments
        return True

    def _arguments(self) -> bool:
        end = self._json.find(self._held)
        taken = self._held if end < 0 else self._held[:end]
        self._pieces.append(ArgumentsPart(self._num_begun - 1, taken))
        self._held = self._held[len(taken) :]
        if end >= 0:
            self.num_calls += 1
            self._step = self._after_call
        return end >= 0

    def _after_call(self) -> bool:
        layout = self._layout
        if not self._takes(layout.after + layout.separator + layout.before_name):
            return False
        self._step = self._name
        return True

    def _takes(self, literal: str) -> bool:
        if not self._held.startswith(literal):
            return False
        self._held = self._held[len(literal) :]
        return True


class _JsonEnd:
    """Finds where a JSON object ends."""

    def __init__(self) -> None:
        self._depth = 0
        self._is_in_string = False
        self._skips = False  # the next character is escaped

    def find(self, text: str) -> int:
        """Return the end of the object in this further text; -1 if it is not there."""
        at = 0
        while at < len(text):
            if self._skips:
                self._skips = False
                at += 1
                continue
            found = (_INSIDE if self._is_in_string else _OUTSIDE).search(text, at)
            if found is None:
                return -1
            at = found.end()
            if self._take(found[0]):
                return at
        return -1

    def _take(self, sign: str) -> bool:
        if sign == "\\":
            self._skips = True
        elif sign == '"':
            self._is_in_string = not self._is_in_string
        else:
            self._depth += 1 if sign in "{[" else -1
        return self._depth == 0 and sign == "}"
