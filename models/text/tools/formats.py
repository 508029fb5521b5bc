"""The tool formats by the names that a config may say, and which one a chat template means."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from models.text.tools.layout import ToolLayout

# Qwen 2.5 and Qwen 3 have it too. Source: the chat templates of NousResearch/Hermes-3 and
# Qwen/Qwen3.
HERMES = ToolLayout(
    name="hermes",
    trigger="<tool_call>",
    before_name='<tool_call>\n{"name": "',
    before_arguments='", "arguments": ',
    after="}\n</tool_call>",
)

# For models whose template knows no tools: a system message describes them. Calls of earlier turns
# are written as the model writes them, and their results are turns of the user (`prompt.py`).
PLAIN_JSON = ToolLayout(
    name="json",
    trigger='{"name": "',
    before_name='{"name": "',
    before_arguments='", "arguments": ',
    after="}",
    begins_line=True,
)

# Llama 3.1 to 3.3: one call a turn (the template refuses more). The tag that may stand before calls
# of built-in tools is not written. Source: the chat template of meta-llama/Llama-3.1-8B-Instruct.
LLAMA3_JSON = ToolLayout(
    name="llama3_json",
    trigger='{"name": "',
    before_name='{"name": "',
    before_arguments='", "parameters": ',
    after="}",
    begins_line=True,
    is_parallel=False,
)

# V3 and R1 put arguments in a code block, V3.1 does not. Source: the chat templates of
# deepseek-ai/DeepSeek-V3-0324, DeepSeek-R1-0528 and DeepSeek-V3.1.
_BEGIN, _END = "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"  # noqa: RUF001 - the tokens' names
_CALL, _SEP, _CALL_END = (
    "<｜tool▁call▁begin｜>",  # noqa: RUF001
    "<｜tool▁sep｜>",  # noqa: RUF001
    "<｜tool▁call▁end｜>",  # noqa: RUF001
)

DEEPSEEK_V3 = ToolLayout(
    name="deepseek_v3",
    trigger=_BEGIN,
    opening=_BEGIN,
    before_name=f"{_CALL}function{_SEP}",
    before_arguments="\n```json\n",
    after=f"\n```{_CALL_END}",
    closing=_END,
)
DEEPSEEK_V31 = ToolLayout(
    name="deepseek_v31",
    trigger=_BEGIN,
    opening=_BEGIN,
    before_name=_CALL,
    before_arguments=_SEP,
    after=_CALL_END,
    separator="",
    closing=_END,
)

# A list after `[TOOL_CALLS]`, or since tokenizer version 11 one for each call. Templates refuse ids
# that are not nine letters and digits. Source: the chat templates of
# mistralai/Mistral-7B-Instruct-v0.3, Mistral-Nemo-Instruct-2407 and Mistral-Small-3.2.
_NUM_ID_CHARS = 9

MISTRAL = ToolLayout(
    name="mistral",
    trigger="[TOOL_CALLS]",
    opening="[TOOL_CALLS][",
    before_name='{"name": "',
    before_arguments='", "arguments": ',
    after="}",
    separator=", ",
    closing="]",
    id_prefix="",
    num_id_chars=_NUM_ID_CHARS,
    has_strict_ids=True,
)
MISTRAL_SPACED = replace(MISTRAL, opening="[TOOL_CALLS] [")  # SentencePiece's tokenizers
MISTRAL_ARGS = ToolLayout(
    name="mistral",
    trigger="[TOOL_CALLS]",
    before_name="[TOOL_CALLS]",
    before_arguments="[ARGS]",
    after="",
    separator="",
    id_prefix="",
    num_id_chars=_NUM_ID_CHARS,
    has_strict_ids=True,
)

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
