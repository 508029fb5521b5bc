"""A plain format for models whose template knows no tools: a line of JSON for each call.

The tools are then described by a system message. Calls of earlier turns are written as the model
writes them, and their results are turns of the user (`prompt.py`).
"""

from models.text.tools.layout import ToolLayout

PLAIN_JSON = ToolLayout(
    name="json",
    trigger='{"name": "',
    before_name='{"name": "',
    before_arguments='", "arguments": ',
    after="}",
    begins_line=True,
)
