"""Tests marked `every_engine` run for the engine that a run names: `pytest --engine vllm`.

They go through `tests.fakes.engines.make_runner`, and know nothing of how a pass is computed.
"""

from __future__ import annotations

import os
from typing import Any

import pytest

_CHOSEN = "OUTRIDER_TEST_ENGINE"  # workers of one run have it from the process that starts them
# What a config says beside a test's own sizes. vLLM's kernels for CPUs want blocks and heads of 32.
# To compile its layers takes 20 s a model: tests/models/vllm/test_backend.py does.
_ENGINES: dict[str, dict[str, Any]] = {
    "own": {"block_size": 16},
    "vllm": {"block_size": 32, "engine": "vllm", "graphs": "off"},
}
_HEAD_DIMS = {"vllm": 32}


def add_options(parser: pytest.Parser) -> None:
    """Add the option of this module."""
    parser.addoption(
        "--engine",
        choices=[*_ENGINES],
        help="run the tests of all engines alone, for this one; vllm must be installed",
    )


def begin(config: pytest.Config) -> None:
    """Fix the engine of this run and of its workers."""
    if given := config.getoption("--engine"):
        os.environ[_CHOSEN] = given


def select(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselect what is not for every engine, where a run names one."""
    if not config.getoption("--engine"):
        return
    others = [item for item in items if not item.get_closest_marker("every_engine")]
    if others:
        config.hook.pytest_deselected(items=others)
        items[:] = [item for item in items if item.get_closest_marker("every_engine")]


def settings() -> dict[str, Any]:
    """Return the fields of `EngineConfig` that choose this run's engine."""
    return dict(_ENGINES[_name()])


def block_tokens() -> int:
    """Return the tokens of a block where a test gives no size."""
    return int(_ENGINES[_name()]["block_size"])


def head_dim() -> int:
    """Return the size of heads that the engine's kernels take."""
    return _HEAD_DIMS.get(_name(), 16)


def _name() -> str:
    return os.environ.get(_CHOSEN, "own")
