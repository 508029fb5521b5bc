"""Blocks in which a model reasons before it answers, and whether a prompt leaves one open.

Qwen 3 writes the opening tag itself and may leave the block out. DeepSeek R1 always reasons, and
its newer templates end the prompt with the opening tag. Sources: their chat templates.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

# The turn is within a block, may begin with one, or has none.
ReasoningStart = Literal["open", "optional", "none"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ReasoningLayout:
    """One format, under vLLM's name for its parser; `is_certain`: every turn has a block."""

    name: str
    begin: str = "<think>"
    end: str = "</think>"
    is_certain: bool = False

    def start_after(self, prompt: str) -> ReasoningStart:
        """Return how the turn after a prompt begins."""
        tail = prompt.rstrip()
        if tail.endswith(self.begin):
            return "open"
        if tail.endswith(self.end):
            return "none"  # a template writes an empty block where reasoning is switched off
        return "open" if self.is_certain else "optional"


REASONING: Mapping[str, ReasoningLayout] = {
    layout.name: layout
    for layout in (
        ReasoningLayout(name="qwen3"),
        ReasoningLayout(name="deepseek_r1", is_certain=True),
    )
}


def named_reasoning(name: str, template: str) -> ReasoningLayout | None:
    """Return the format of a name; for `auto` the one that the chat template shows, if any.

    Raises:
        ValueError: there is none of this name.
    """
    if name == "none":
        return None
    if name == "auto":
        default = REASONING["qwen3"]
        return default if default.end in template else None
    if name not in REASONING:
        names = ", ".join(sorted(REASONING))
        raise ValueError(f"must be auto, none or one of {names} (got {name!r})")
    return REASONING[name]
