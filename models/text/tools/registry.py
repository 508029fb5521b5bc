"""The tool formats by the names that a config may say, and which one a chat template means."""

from __future__ import annotations

from collections.abc import Mapping

from models.text.tools.deepseek import DEEPSEEK_V3, DEEPSEEK_V31
from models.text.tools.hermes import HERMES
from models.text.tools.layout import ToolLayout
from models.text.tools.llama import LLAMA3_JSON
from models.text.tools.mistral import MISTRAL, MISTRAL_ARGS, MISTRAL_SPACED
from models.text.tools.plain import PLAIN_JSON

LAYOUTS: Mapping[str, ToolLayout] = {
    layout.name: layout
    for layout in (HERMES, LLAMA3_JSON, MISTRAL, DEEPSEEK_V3, DEEPSEEK_V31, PLAIN_JSON)
}
# A template that knows a format has all of these texts; the first match counts.
_SIGNS: tuple[tuple[tuple[str, ...], ToolLayout], ...] = (
    (("[TOOL_CALLS]", "[ARGS]"), MISTRAL_ARGS),
    (("[TOOL_CALLS] [",), MISTRAL_SPACED),
    (("[TOOL_CALLS]",), MISTRAL),
    ((DEEPSEEK_V3.opening, "```json"), DEEPSEEK_V3),
    ((DEEPSEEK_V31.opening,), DEEPSEEK_V31),
    (("<function=",), PLAIN_JSON),  # arguments as XML elements, in Hermes' tags
    (("<tool_call>",), HERMES),
    (('"parameters": ', "ipython"), LLAMA3_JSON),
)


def detected_layout(template: str) -> ToolLayout:
    """Return the format of a chat template; the plain one if it shows none of the others."""
    for signs, layout in _SIGNS:
        if all(sign in template for sign in signs):
            return layout
    return PLAIN_JSON


def named_layout(name: str, template: str) -> ToolLayout:
    """Return the format of a name; if it has several forms, the one that the template shows.

    Raises:
        ValueError: there is none of this name.
    """
    detected = detected_layout(template)
    if name in ("auto", detected.name):
        return detected
    if name not in LAYOUTS:
        raise ValueError(f"must be auto or one of {', '.join(sorted(LAYOUTS))} (got {name!r})")
    return LAYOUTS[name]
