"""Each sentence of the front page has a proof that exists; `front_page.py` has the table."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

from tests.front_page import PROOFS
from tests.test_documentation import FENCE, FIGURES, ROOT, anchors

STATUS = re.compile(r"^\| (CPU|GPU|Kubernetes) \| (.+) \|$", re.MULTILINE)
TABLE = re.compile(r"^\|.*$", re.MULTILINE)
HEADING = re.compile(r"^#+ .*$", re.MULTILINE)
PARAGRAPH = re.compile(r"\n\s*\n|\n(?=(?:- |\d+\. ))")
SENTENCE = re.compile(r"(?<=[.:])\s+(?=[A-Z`\[<])")


def plain(text: str) -> str:
    """The words without Markdown: links by what they show, no marks of code or weight."""
    text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", text)
    return " ".join(re.sub(r"[`*<>]", "", text).split())


def sentences(page: str) -> list[str]:
    """What the page says in prose and in its table of states.

    Figures and code are compared with results and run elsewhere; the other tables name files, which
    `test_documentation` looks for.
    """
    states = [f"{where} {status}" for where, status in STATUS.findall(page)]
    for pattern in (FIGURES, FENCE, TABLE, HEADING):
        page = pattern.sub("", page)
    paragraphs = [re.sub(r"^(?:- |\d+\. )", "", part.strip()) for part in PARAGRAPH.split(page)]
    found = [one for part in paragraphs for one in SENTENCE.split(" ".join(part.split()))]
    return [plain(one) for one in [*states, *found] if plain(one)]


@cache
def functions_of(path: Path) -> set[str]:
    nodes = ast.walk(ast.parse(path.read_text(encoding="utf-8")))
    functions = (ast.FunctionDef, ast.AsyncFunctionDef)
    return {node.name for node in nodes if isinstance(node, functions)}


def missing(proof: str) -> str:
    """Why a proof is none; "" where it is there."""
    file, colon, text = proof.partition(": ")
    path, _, name = file.partition("::")
    if name:
        there = ROOT / "tests" / path
        return "" if there.is_file() and name in functions_of(there) else "no such test"
    if colon:
        there = ROOT / file
        return (
            "" if there.is_file() and text in there.read_text(encoding="utf-8") else "no such text"
        )
    if path.startswith("results/"):
        return "" if (ROOT / "loadtest" / path).is_file() else "no such result"
    page, _, anchor = path.partition("#")
    return "" if (ROOT / page).is_file() and anchor in anchors(ROOT / page) else "no such part"


PAGE = (ROOT / "README.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("sentence", sentences(PAGE))
def test_a_sentence_has_a_proof(sentence: str) -> None:
    entries = [start for start in PROOFS if sentence.startswith(start)]
    assert len(entries) == 1, f"tests/front_page.py needs one entry for: {sentence}"
    assert PROOFS[entries[0]], "without a proof it is no entry"


@pytest.mark.parametrize("start", PROOFS)
def test_its_proofs_exist_and_it_is_still_said(start: str) -> None:
    assert {proof: why for proof in PROOFS[start] if (why := missing(proof))} == {}
    assert any(sentence.startswith(start) for sentence in sentences(PAGE)), "said no more"


def test_a_new_claim_and_a_proof_that_is_gone_are_seen() -> None:
    added = PAGE.replace("## Two commands", "- It is twice as fast as anything.\n\n## Two commands")
    new = set(sentences(added)) - set(sentences(PAGE))
    assert new == {"It is twice as fast as anything."}
    assert not any(one.startswith(start) for one in new for start in PROOFS)
    assert missing("router/test_loop.py::test_nothing_of_the_kind") == "no such test"
    assert missing("results/nothing.json") == "no such result"
    assert missing("models/README.md#nothing") == "no such part"
    assert missing("pyproject.toml: nothing of the kind") == "no such text"
