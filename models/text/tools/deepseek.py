"""DeepSeek's formats: V3 and R1 with a code block, V3.1 without.

Source: the chat templates of deepseek-ai/DeepSeek-V3-0324, DeepSeek-R1-0528 and DeepSeek-V3.1.
"""

from models.text.tools.layout import ToolLayout

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
