"""Llama 3.1 to 3.3: a bare JSON object, one call a turn (the template refuses more).

The tag that may stand before calls of built-in tools is not written. Source: the chat template of
meta-llama/Llama-3.1-8B-Instruct.
"""

from models.text.tools.layout import ToolLayout

LLAMA3_JSON = ToolLayout(
    name="llama3_json",
    trigger='{"name": "',
    before_name='{"name": "',
    before_arguments='", "parameters": ',
    after="}",
    begins_line=True,
    is_parallel=False,
)
