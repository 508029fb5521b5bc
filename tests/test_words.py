"""Docstrings begin with an actor or a verb and have short sentences: offenders only fall."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parent.parent
MAX_WORDS = 20
LEFT = {"opening": 0, "not a verb": 1, "long sentence": 0}  # may only fall

# No docstring begins with one of these: its first sentence has a subject and a verb.
OPENING = re.compile(
    r"\W*(What|Whether|Who|Whom|Whose|Which|How|Where|Of|As|About|After|Against|Among|At|Before|"
    r"Behind|Beside|Between|By|During|For|From|In|Into|On|Out|Over|Since|Through|To|Under|Until|"
    r"Up|Upon|With|Within|Without)\b"
)
# A function's begins with its verb ("Return", "Check"); a property's may begin with a noun.
NOT_A_VERB = re.compile(
    r"\W*(A|All|An|And|Another|Any|Both|But|Each|Either|Every|Everything|It|Its|Neither|No|Nobody|"
    r"None|Nothing|One|Our|Some|That|The|Their|There|These|They|This|Those|We|You)\b"
)
SECTION = re.compile(r"^(?:Args|Attributes|Raises|Returns|Yields):$", re.MULTILINE)
PARAGRAPH = re.compile(r"\n\s*\n|\n(?=- )")
NO_PROSE = ("    ", "|", "Shape letters:")  # examples, tables, legends
DOCUMENTED = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


def offences(node: ast.AST, text: str) -> Iterator[str]:
    if OPENING.match(text):
        yield "opening"
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        is_property = any(ast.unparse(one).endswith("property") for one in node.decorator_list)
        if not is_property and (OPENING.match(text) or NOT_A_VERB.match(text)):
            yield "not a verb"
    for paragraph in PARAGRAPH.split(SECTION.split(text)[0]):
        if not paragraph.startswith(NO_PROSE):
            sentences = re.split(r"(?<=[.!?])\s+", paragraph)
            yield from ("long sentence" for one in sentences if len(one.split()) > MAX_WORDS)


def test_offenders_only_fall() -> None:
    found: dict[str, list[str]] = {kind: [] for kind in LEFT}
    for path in sorted(ROOT.glob("[dlmr]*/**/*.py")):  # the four houses
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, DOCUMENTED) and (text := ast.get_docstring(node)):
                for kind in offences(node, text):
                    found[kind].append(f"{path.relative_to(ROOT)}:{getattr(node, 'lineno', 1)}")
    counts = {kind: len(places) for kind, places in found.items()}
    risen = {kind: found[kind] for kind in LEFT if counts[kind] > LEFT[kind]}
    assert not risen, f"at most {LEFT}: {risen}"
    assert counts == LEFT, f"lower LEFT to {counts}"
