"""Rules about the repository itself: its top level, and that nothing large slips in."""

from __future__ import annotations

import ast
import subprocess
import tomllib
from pathlib import Path

import pytest
from setuptools import find_packages  # type: ignore[import-untyped]  # its stubs lag behind

ROOT = Path(__file__).parent.parent
TOP_LEVEL = {
    *("pyproject.toml", "deployments", "models", "router", "configs", "k8s", "loadtest", "tests"),
    *("README.md", "LICENSE", "constraints.txt"),
}


def tracked() -> list[Path]:
    listing = subprocess.run(
        ["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=False, timeout=30
    )
    if listing.returncode != 0:
        pytest.skip("not a git checkout")
    paths = [ROOT / name for name in listing.stdout.decode().split("\0") if name]
    return [path for path in paths if path.exists()]


def test_top_level_holds_only_what_belongs_there() -> None:
    names = {path.relative_to(ROOT).parts[0] for path in tracked()}
    assert {name for name in names if not name.startswith(".")} <= TOP_LEVEL


def test_files_stay_small() -> None:
    limits = {"models/demo": 15_000_000}
    for path in tracked():
        name = path.relative_to(ROOT).as_posix()
        limit = next((size for folder, size in limits.items() if name.startswith(folder)), 500_000)
        assert path.stat().st_size <= limit, f"{name} is larger than {limit} bytes"


def test_the_demo_pairs_stay_small() -> None:
    pairs = [path for path in tracked() if "models/demo/" in path.as_posix()]
    assert sum(path.stat().st_size for path in pairs) <= 50_000_000


HOUSES = ("models", "router", "deployments", "loadtest")  # what is installed
MAX_MODULES = 20  # of a folder, that it can be seen at a glance
# Lines of Python. A number that must rise has its reason in the changelog; the aims are 30,000,
# 7,000, 17,000, 12,000 and 48,000.
MAX_LINES = {
    "models": 41_506,
    "router": 9_725,
    "deployments": 25_440,
    "loadtest": 30_010,
    "tests": 75_125,
}
MAX_PRIVATES = 70  # places in tests that look into another object; each is a seam that is missing


def folders_of(*tops: str) -> dict[Path, list[Path]]:
    """Tracked modules by folder, of these folders of the top level."""
    folders: dict[Path, list[Path]] = {}
    for path in tracked():
        if path.suffix == ".py" and path.relative_to(ROOT).parts[0] in tops:
            folders.setdefault(path.parent, []).append(path)
    return folders


def source_folders() -> dict[Path, list[Path]]:
    """Tracked modules by folder, of what is installed."""
    return folders_of(*HOUSES)


def test_packages_reexport_nothing() -> None:
    """A re-export in models/__init__ would pull torch into the router."""
    for folder in source_folders():
        assert (folder / "__init__.py").read_text().strip() == "", folder


def test_every_folder_is_installed() -> None:
    """What setuptools finds by itself is every folder with a module: none lacks an __init__."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    include = project["tool"]["setuptools"]["packages"]["find"]["include"]
    found = set(find_packages(str(ROOT), include=include))
    assert found == {".".join(folder.relative_to(ROOT).parts) for folder in source_folders()}


def test_folders_hold_no_more_than_is_seen_at_a_glance() -> None:
    for folder, modules in folders_of(*HOUSES, "tests").items():
        names = [path.name for path in modules if path.name != "__init__.py"]
        assert len(names) <= MAX_MODULES, f"{folder.relative_to(ROOT)}: {sorted(names)}"


def test_source_files_stay_readable() -> None:
    for path in tracked():
        if path.suffix == ".py":
            name = path.relative_to(ROOT).as_posix()
            limit = 600 if name.startswith("tests/") else 400
            num_lines = len(path.read_text(encoding="utf-8").splitlines())
            assert num_lines <= limit, f"{name} has {num_lines} lines, the limit is {limit}"


@pytest.mark.parametrize("house", MAX_LINES)
def test_a_house_grows_no_further(house: str) -> None:
    modules = [path for modules in folders_of(house).values() for path in modules]
    num_lines = sum(len(path.read_text(encoding="utf-8").splitlines()) for path in modules)
    assert num_lines <= MAX_LINES[house]


def is_private(node: ast.AST) -> bool:
    """Whether it is `x._y` of another object than `self`."""
    if not isinstance(node, ast.Attribute) or not node.attr.startswith("_"):
        return False
    is_own = isinstance(node.value, ast.Name) and node.value.id in ("self", "cls")
    return not (is_own or node.attr.startswith("__"))


def test_tests_look_into_few_objects() -> None:
    """A test that reads or sets `x._y` freezes what is inside."""
    found = []
    for path in (path for modules in folders_of("tests").values() for path in modules):
        nodes = ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        found += [f"{path.name}: {ast.unparse(node)}" for node in nodes if is_private(node)]
    assert len(found) <= MAX_PRIVATES, sorted(found)
