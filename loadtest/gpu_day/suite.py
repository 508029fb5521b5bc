"""The tests that need a GPU, those of `pytest -m gpu`."""

from __future__ import annotations

import subprocess
import sys
from typing import Any
from xml.etree import ElementTree

from loadtest.gpu_day.terms import Terms
from loadtest.report.machine import ROOT

_KINDS = ("failure", "error", "skipped")
_KEPT_CHARACTERS = 400  # characters of an error


def suite(terms: Terms) -> dict[str, Any]:
    """Run the GPU tests and count passed, failed and skipped ones; failures come with their reason.

    Raises:
        RuntimeError: nothing was run.
    """
    path = terms.folder / "tests.xml"
    words = ["-m", "gpu", "-q", "-p", "no:cacheprovider", f"--junitxml={path}", *_marked()]
    done = subprocess.run([sys.executable, "-m", "pytest", *words], cwd=ROOT, check=False)
    if not path.is_file():
        raise RuntimeError(f"pytest ended with status {done.returncode} and wrote no report")
    return outcome_of(ElementTree.parse(path).getroot())


def _marked() -> list[str]:
    """Return files and folders with such tests: a paid card should not wait for all to be read."""
    sources = sorted((ROOT / "tests").rglob("*.py"))
    found = [path for path in sources if "pytest.mark.gpu" in path.read_text(encoding="utf-8")]
    return [str(path.parent if path.name == "conftest.py" else path) for path in found]


def outcome_of(report: ElementTree.Element) -> dict[str, Any]:
    """Counts and failures of a JUnit report."""
    cases = list(report.iter("testcase"))
    found = {kind: [case for case in cases if case.find(kind) is not None] for kind in _KINDS}
    wrong = [*found["failure"], *found["error"]]
    return {
        "num_passed": len(cases) - len(wrong) - len(found["skipped"]),
        "num_failed": len(wrong),
        "num_skipped": len(found["skipped"]),
        "failed": [
            {"test": f"{case.get('classname')}::{case.get('name')}", "why": _why(case)}
            for case in wrong
        ],
    }


def _why(case: ElementTree.Element) -> str:
    cause = case.find("failure") if case.find("failure") is not None else case.find("error")
    return "" if cause is None else (cause.get("message") or "")[:_KEPT_CHARACTERS]
