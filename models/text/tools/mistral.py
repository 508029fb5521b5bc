"""Mistral's formats: a list after `[TOOL_CALLS]`, or since tokenizer version 11 one for each call.

Templates refuse ids that are not nine letters and digits. Source: the chat templates of
mistralai/Mistral-7B-Instruct-v0.3, Mistral-Nemo-Instruct-2407 and Mistral-Small-3.2.
"""

from dataclasses import replace

from models.text.tools.layout import ToolLayout

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
