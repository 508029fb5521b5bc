"""The content of one turn of the assistant: reasoning, then text or calls."""

from __future__ import annotations

from dataclasses import dataclass

from models.text.tools.layout import ToolLayout
from models.text.tools.reasoning import ReasoningLayout, ReasoningStart


@dataclass(frozen=True, slots=True, kw_only=True)
class CallableTool:
    """A function that may be called: its name, and the JSON text of its arguments' schema."""

    name: str
    schema: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """The content that a request allows in a turn.

    Attributes:
        layout: of calls.
        tools: that may be called; empty: the turn has no calls.
        must_call: whether it consists of calls; else text may come before them or instead.
        max_calls: in the turn.
        reasoning: how a block in front is written; None: such a block is text like any other.
        reasoning_start: whether there is one.
        body: Lark's notation of what stands in the place of free text; empty: text is free, and
            may go before calls.
    """

    layout: ToolLayout
    tools: tuple[CallableTool, ...] = ()
    must_call: bool = False
    max_calls: int = 1
    reasoning: ReasoningLayout | None = None
    reasoning_start: ReasoningStart = "none"
    body: str = ""

    @property
    def begins_free(self) -> bool:
        """True if free text may come first, reasoning apart."""
        return not self.must_call and not self.body
