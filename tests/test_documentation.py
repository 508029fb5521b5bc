"""What the READMEs name exists: links, headings, files, modules and the code they show."""

from __future__ import annotations

import ast
import importlib.util
import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PAGES = sorted(
    {
        *ROOT.glob("*.md"),
        *ROOT.glob("[!.]*/*.md"),  # none that a tool leaves, like .pytest_cache
        ROOT / "models" / "demo" / "README.md",
        *(ROOT / "models" / "grammar").glob("*.md"),
        *ROOT.glob(".github/**/*.md"),
        *ROOT.glob("*/docs/*.md"),
    }
)
FOLDERS = ("models", "router", "deployments", "loadtest", "tests")
LINK = re.compile(r"\]\((?P<target>[^)\s]+)\)")
FENCE = re.compile(r"^```(?P<language>\w*)\n(?P<code>.*?)^```$", re.MULTILINE | re.DOTALL)
FIGURES = re.compile(r"^<!-- figures: .*?^<!-- end of figures -->$", re.MULTILINE | re.DOTALL)
CODE_SPAN = re.compile(r"`([^`\n]+)`")
FILE = re.compile(r"(?:[\w.*-]+/)+[\w*-]+\.(?:py|yaml|json|md|txt)")  # has a folder
MODULE = re.compile(r"python -m ((?:models|router|deployments|loadtest)[\w.]*)")
COMMAND = re.compile(r"\bpytest ((?:tests/[\w/.-]+ ?)+)")


def named(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


@cache
def prose(page: Path) -> str:
    """The page without its blocks of code."""
    return FENCE.sub("", page.read_text(encoding="utf-8"))


def anchors(page: Path) -> set[str]:
    """The names by which GitHub links to headings."""
    headings = re.findall(r"^#+ (.+)$", prose(page), re.MULTILINE)
    kept = (re.sub(r"[^\w\- ]", "", heading.lower()) for heading in headings)
    return {heading.strip().replace(" ", "-") for heading in kept}


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_links_lead_somewhere(page: Path) -> None:
    for match in LINK.finditer(prose(page)):
        target, _, anchor = match["target"].partition("#")
        if target.startswith(("https://", "http://")):
            continue
        file = (page.parent / target).resolve() if target else page
        assert file.exists(), match["target"]
        assert not anchor or anchor in anchors(file), match["target"]


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_files_that_are_named_exist(page: Path) -> None:
    """A path is meant from the repository's root, from the page's folder, or from tests/."""
    for span in CODE_SPAN.findall(prose(page)):
        if "<" in span or "MODULE" in span or not FILE.fullmatch(span):
            continue
        folders = (ROOT, page.parent, ROOT / "tests" / "integration", ROOT / "tests")
        assert any(list(folder.glob(span)) for folder in folders), span


@cache
def module_names() -> set[str]:
    """The names of all Python files, without their folders."""
    return {path.name for folder in FOLDERS for path in (ROOT / folder).rglob("*.py")}


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_modules_that_are_named_without_a_folder_exist(page: Path) -> None:
    for span in CODE_SPAN.findall(prose(page)):
        if re.fullmatch(r"\w+\.py", span) and span != "test_MODULE.py":
            assert span in module_names(), span


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_commands_name_modules_and_tests_that_exist(page: Path) -> None:
    text = FIGURES.sub("", page.read_text(encoding="utf-8"))  # how a figure was once made stands
    for module in MODULE.findall(text):
        spec = importlib.util.find_spec(module.rstrip("."))
        assert spec is not None, module
        assert spec.origin is not None, f"{module}: a folder that is left over"
    for arguments in COMMAND.findall(text):
        for path in arguments.split():
            assert (ROOT / path).exists(), path
    for config in re.findall(r"configs/[\w.-]+\.yaml", text):
        assert (ROOT / config).exists(), config


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_python_that_is_shown_compiles(page: Path) -> None:
    for match in FENCE.finditer(page.read_text(encoding="utf-8")):
        if match["language"] == "python":
            ast.parse(match["code"])


def test_the_front_page_is_one_sitting() -> None:
    num_lines = len((ROOT / "README.md").read_text(encoding="utf-8").splitlines())
    assert num_lines <= 110, f"README.md has {num_lines} lines: move what only some need"


LONG = {"config-keys.md", "metrics.md", "moving-from-vllm.md"}  # to look up


def test_a_page_for_a_task_is_short() -> None:
    tasks = [page for page in (ROOT / "deployments" / "docs").glob("*.md") if page.name not in LONG]
    pages = [ROOT / "deployments" / "README.md", *tasks]
    lines = {named(page): len(page.read_text(encoding="utf-8").splitlines()) for page in pages}
    assert {page: number for page, number in lines.items() if number > 80} == {}


GENERATED = {"config-keys.md", "metrics.md", "keywords.md"}
MAX_BYTES = 155_000  # of all pages that somebody writes, without the front page and loadtest's


def test_all_pages_together_can_be_read() -> None:
    left_out = {ROOT / "README.md", ROOT / "loadtest" / "README.md"}  # and loadtest/docs
    pages = [
        page
        for page in PAGES
        if page not in left_out
        and page.name not in GENERATED
        and page.parent != ROOT / "loadtest" / "docs"
    ]
    num_bytes = sum(page.stat().st_size for page in pages)
    assert num_bytes <= MAX_BYTES, f"{num_bytes} bytes: say things once, and link"


def test_every_package_says_what_it_is() -> None:
    for package in ("models", "router", "deployments", "loadtest", "tests", "k8s"):
        page = ROOT / package / "README.md"
        assert page.exists(), package
        assert f"]({package}/README.md" in (ROOT / "README.md").read_text(encoding="utf-8")
