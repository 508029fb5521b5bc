"""Hermes' format, which Qwen 2.5 and Qwen 3 have too: a JSON object in `<tool_call>` tags.

Source: the chat templates of NousResearch/Hermes-3 and Qwen/Qwen3.
"""

from models.text.tools.layout import ToolLayout

HERMES = ToolLayout(
    name="hermes",
    trigger="<tool_call>",
    before_name='<tool_call>\n{"name": "',
    before_arguments='", "arguments": ',
    after="}\n</tool_call>",
)
