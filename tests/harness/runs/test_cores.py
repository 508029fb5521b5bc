"""A whole run has two processes, and one of them has all tests that start Ray, first."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.harness.held_services import SERVICES
from tests.harness.runs import cores
from tests.harness.runs.cores import WITH_RAY

ROOT = Path(__file__).parents[3]
CONFTEST = """
import json, os, time
import pytest
from tests.harness.runs import cores

@pytest.hookimpl(tryfirst=True)
def pytest_cmdline_main(config):
    cores.use_both(config)

def pytest_xdist_make_scheduler(config, log):
    return cores.OneRay(config, log)

def pytest_collection_modifyitems(items):
    cores.order(items)

@pytest.fixture(autouse=True)
def told(request):
    line = {"test": request.node.name, "process": os.environ.get("PYTEST_XDIST_WORKER")}
    with open(os.environ["TOLD"], "a") as told:
        told.write(json.dumps(line) + chr(10))
    time.sleep(0.05)
"""
RAY = "import pytest\npytestmark = pytest.mark.ray\n"
INI = """
[pytest]
testpaths = tests
addopts = --import-mode=importlib
markers =
    ray: starts Ray
    slow: takes long
"""
FILES = {
    "tests/integration/cluster/test_1.py": RAY + "def test_ray_1(): pass\ndef test_ray_2(): pass\n",
    "tests/integration/served/test_2.py": RAY + "def test_ray_3(): pass\ndef test_ray_4(): pass\n",
    "tests/test_a.py": "".join(f"def test_a_{number}(): pass\n" for number in range(4)),
    "tests/test_b.py": "import pytest\n@pytest.mark.slow\ndef test_b_slow(): pass\n",
}


def run(folder: Path, files: dict[str, str], *words: str) -> tuple[str, list[dict[str, str]]]:
    """The output of a run, and which test was in which process, in order."""
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
    told = folder / "told"
    told.touch()
    environment = {k: v for k, v in os.environ.items() if not k.startswith("PYTEST_")}
    ended = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-p", "no:asyncio", *words],
        cwd=folder,
        env=environment | {"PYTHONPATH": str(ROOT), "TOLD": str(told)},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    return ended.stdout + ended.stderr, [json.loads(line) for line in told.read_text().splitlines()]


@pytest.fixture
def suite() -> dict[str, str]:
    return {"pytest.ini": INI, "conftest.py": CONFTEST, **FILES}


def test_one_of_two_processes_begins_with_ray(tmp_path: Path, suite: dict[str, str]) -> None:
    output, told = run(tmp_path, suite)
    assert "9 passed" in output
    processes = {line["test"]: line["process"] for line in told}
    of_ray = [line["test"] for line in told if line["test"].startswith("test_ray")]
    assert of_ray == ["test_ray_1", "test_ray_2", "test_ray_3", "test_ray_4"]
    assert len({processes[name] for name in of_ray}) == 1
    assert set(processes.values()) == {"gw0", "gw1"}
    by_other = [line["test"] for line in told if line["process"] != processes["test_ray_1"]]
    assert by_other[0] == "test_b_slow"


@pytest.mark.parametrize("words", [("-n", "0"), ("tests",)], ids=" ".join)
def test_a_command_may_ask_for_one_process(
    tmp_path: Path, suite: dict[str, str], words: tuple[str, ...]
) -> None:
    _, told = run(tmp_path, suite, *words)
    assert len(told) == 9
    assert {line["process"] for line in told} == {None}
    assert [line["test"] for line in told[:5]] == [
        *("test_ray_1", "test_ray_2", "test_ray_3", "test_ray_4"),
        "test_b_slow",
    ]


SHARED = """
@pytest.fixture
def demo(): pass

@pytest.fixture
def deployed(): pass

@pytest.fixture
def demo_at_its_end(demo): pass
"""


def test_tests_of_one_service_are_side_by_side_and_who_ends_it_is_last(
    tmp_path: Path, suite: dict[str, str]
) -> None:
    of_services = {
        "conftest.py": CONFTEST + SHARED,
        "tests/integration/cluster/test_1.py": RAY
        + "def test_1(demo): pass\ndef test_2(demo_at_its_end): pass\ndef test_3(): pass\n",
        "tests/integration/served/test_2.py": RAY
        + "def test_4(deployed): pass\ndef test_5(demo): pass\ndef test_6(deployed): pass\n",
    }
    _, told = run(tmp_path, suite | of_services, "-n", "0")
    assert [line["test"] for line in told[:6]] == [
        f"test_{number}" for number in (3, 1, 5, 2, 4, 6)
    ]


def test_every_held_service_is_known_where_tests_are_ordered() -> None:
    assert set(SERVICES) == set(cores.HELD)


def test_all_that_starts_ray_is_in_those_folders() -> None:
    """The process that gives out tests knows their paths, not their marks."""
    marked = [
        str(path.relative_to(ROOT))
        for path in sorted((ROOT / "tests").rglob("test_*.py"))
        if "pytest.mark.ray" in path.read_text(encoding="utf-8") and path != Path(__file__)
    ]
    assert len(marked) > 20
    assert [path for path in marked if not path.startswith(WITH_RAY)] == []
