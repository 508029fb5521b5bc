"""Which JSON-schema keywords are served: the table in `models/grammar/keywords.md`.

    python -m tests.cases.keyword_table > models/grammar/keywords.md

It is made from the official JSON-Schema Test Suite (MIT, `json_schema_suite/LICENSE`): every schema
of it is compiled, and every instance is written as the service writes JSON and compared with it.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from models.grammar.check import check_text
from models.grammar.compiler import GrammarCompiler, VocabularyInfo
from models.protocol.errors import UnsupportedGrammar
from models.protocol.messages import Grammar

SUITE = Path(__file__).parent / "json_schema_suite" / "draft2020-12.json"
TABLE = Path("models/grammar/keywords.md")
_MAX_REASON = 70

_HEAD = """# JSON-schema keywords

`python -m tests.cases.keyword_table` makes this table from the official JSON-Schema Test Suite
(draft 2020-12, the keywords below). Schemas that are not served are refused by name and place with
a 400; nothing is ignored. "Valid texts not written" are such that the service could write in
another way only: properties stand in the order of the schema, a number has one spelling.
No invalid text was ever let through.

"""
_COLUMNS = (
    *("keyword", "", "schemas served", "valid texts written", "not written"),
    *("invalid texts refused", "first refusal"),
)


@dataclass
class Counts:
    """What became of one keyword's part of the suite."""

    served: int = 0
    schemas: int = 0
    written: int = 0
    not_written: int = 0
    refused: int = 0  # invalid texts of schemas that are served
    wrong: list[str] = field(default_factory=list)  # invalid texts that went through
    reason: str = ""

    @property
    def verdict(self) -> str:
        """In one word."""
        if self.served == self.schemas:
            return "served"
        return "partly" if self.served else "refused"


def counted(compiler: GrammarCompiler, cases: list[dict[str, Any]]) -> Counts:
    """What becomes of these schemas and their instances."""
    counts = Counts()
    for case in cases:
        counts.schemas += 1
        try:
            compiled = compiler.compile(
                Grammar(kind="json_schema", text=json.dumps(case["schema"]))
            )
        except UnsupportedGrammar as error:
            counts.reason = counts.reason or error.message
            continue
        counts.served += 1
        for test in case["tests"]:
            text = json.dumps(test["data"], ensure_ascii=False)
            found = check_text(compiled, text)
            goes = found.may_end and found.num_bytes == len(text.encode())
            if test["valid"]:
                counts.written += goes
                counts.not_written += not goes
            elif goes:
                counts.wrong.append(f"{case['description']}: {text}")
            else:
                counts.refused += 1
    return counts


def all_counts() -> Iterator[tuple[str, Counts]]:
    """Of every keyword in the suite."""
    compiler = GrammarCompiler(VocabularyInfo("byte", 257, (256,)))
    for keyword, cases in json.loads(SUITE.read_text(encoding="utf-8")).items():
        yield keyword, counted(compiler, cases)


def table(counts: dict[str, Counts]) -> str:
    """The page."""
    columns = f"| {' | '.join(_COLUMNS)} |\n{'|---' * len(_COLUMNS)}|\n"
    return _HEAD + columns + "".join(_row(keyword, one) for keyword, one in sorted(counts.items()))


def _row(keyword: str, one: Counts) -> str:
    reason = one.reason.replace("|", "\\|").replace("<", "&lt;")
    if len(reason) > _MAX_REASON:
        reason = reason[:_MAX_REASON].rstrip() + "..."
    return (
        f"| {keyword} | {one.verdict} | {one.served} of {one.schemas} | {one.written} "
        f"| {one.not_written} | {one.refused} | {reason} |\n"
    )


if __name__ == "__main__":
    sys.stdout.write(table(dict(all_counts())))
