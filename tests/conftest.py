"""Tiny seeded random checkpoints, written once per run; by which clock tests wait; how runs end."""

from __future__ import annotations

import asyncio
import logging
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from deployments.serve.heap import freeze_heap
from loadtest.fuzz.failures.virtual_time import VirtualTimeLoop
from tests.harness.runs import cores, engines, matrices
from tests.harness.runs.memory import resident_memory
from tests.harness.serve_end import end_router_loop

# Configs name models of the hub: no test asks it. Those that have a hub of their own say so.
os.environ.setdefault("HF_HUB_OFFLINE", "1")
# Read when a kernel is defined: on a machine without a GPU Triton interprets them.
if not Path("/proc/driver/nvidia").exists():
    os.environ.setdefault("TRITON_INTERPRET", "1")
# oneDNN keeps a compiled product for each shape: tests have thousands, a service some tens.
os.environ.setdefault("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "64")

_LOGGERS = ("deployments", "router", "models", "ray.serve")
_MAX_RESIDENT_BYTES = 3 * 2**30  # of one process that runs all tests


def pytest_addoption(parser: pytest.Parser) -> None:
    """Let a run ask for all combinations of parameters, and for another engine."""
    matrices.add_options(parser)
    engines.add_options(parser)


@pytest.hookimpl(tryfirst=True)  # xdist reads how many processes there are to be
def pytest_cmdline_main(config: pytest.Config) -> None:
    """Run the whole suite on both cores."""
    cores.use_both(config)


def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> cores.OneRay:
    """Keep the tests that start Ray in one of the processes."""
    return cores.OneRay(config, log)


def pytest_configure(config: pytest.Config) -> None:
    """Fix which combinations and which engine this run and its workers have."""
    matrices.begin(config)
    engines.begin(config)


def pytest_report_header(config: pytest.Config) -> str:
    """Say which, so that a run can be repeated."""
    return f"matrices: {matrices.begin(config)}"


@pytest.hookimpl(trylast=True)  # what -k and -m leave is sampled
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out combinations that a sample does without, and begin with the longest."""
    engines.select(config, items)
    matrices.sample(config, items)
    cores.order(items)


def pytest_collection_finish() -> None:
    """Let the collector pass over all that is imported; one thread where torch is used at all.

    Tests of the router and the API are without torch. Passes of a tiny model are too short for
    several threads. On a busy machine threads that wait for each other at every layer make them a
    hundred times slower.
    """
    if "torch" in sys.modules:
        sys.modules["torch"].set_num_threads(1)
    freeze_heap()


def pytest_sessionfinish() -> None:
    """Nothing of Serve's may run in this process while the interpreter ends."""
    end_router_loop()


def pytest_asyncio_loop_factories(
    item: pytest.Item,
) -> dict[str, Callable[[], asyncio.AbstractEventLoop]]:
    """Async tests run on the usual loop, or where they are marked so on one with virtual time."""
    if item.get_closest_marker("virtual_time"):
        return {"virtual-time": VirtualTimeLoop}
    return {"real-time": asyncio.new_event_loop}


@pytest.fixture(autouse=True)
def own_logging() -> None:
    """Each test begins with log lines that go to the root, once.

    Replicas that a test before it made in this process, or Serve itself, have had them go to
    Serve's handlers as well.
    """
    logging.disable(logging.NOTSET)
    logging.getLogger().setLevel(logging.WARNING)
    for logger in list(logging.root.manager.loggerDict.values()):  # threads make some
        if isinstance(logger, logging.Logger):
            logger.disabled = False
    for name in _LOGGERS:
        logger = logging.getLogger(name)
        logger.handlers = []
        logger.propagate = True
        logger.setLevel(logging.NOTSET)


@pytest.fixture(autouse=True)
def bounded_memory() -> Iterator[None]:
    """Fail the test after which this process holds more than the whole suite may need."""
    yield
    held_bytes = resident_memory.after_a_test(_MAX_RESIDENT_BYTES)
    assert held_bytes < _MAX_RESIDENT_BYTES, f"the tests hold {held_bytes / 2**30:.1f} GiB by now"


@pytest.fixture(scope="session")
def make_tiny_llama(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., str]:
    """A function that writes a tiny Llama (fields of LlamaConfig, `seed`) and returns its path."""

    def make(*, seed: int = 0, **overrides: object) -> str:
        from tests.cases.tiny_llama import write_tiny_llama

        directory = tmp_path_factory.mktemp("llama")
        return str(write_tiny_llama(directory, seed=seed, **overrides))

    return make


@pytest.fixture(scope="session")
def tiny_target(make_tiny_llama: Callable[..., str]) -> str:
    """Path of the tiny target checkpoint: Llama, vocabulary 512, 1024 positions, eos id 1."""
    return make_tiny_llama(seed=1)


@pytest.fixture(scope="session")
def tiny_draft(make_tiny_llama: Callable[..., str]) -> str:
    """Path of a smaller checkpoint with the same vocabulary as `tiny_target`."""
    return make_tiny_llama(
        seed=2, num_hidden_layers=1, hidden_size=32, head_dim=16, intermediate_size=96
    )
