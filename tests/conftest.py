"""Tiny seeded random checkpoints, written once per run as ordinary HF directories; how runs end."""

from __future__ import annotations

import atexit
import os
import sys
from collections.abc import Callable

import pytest

_SESSION = pytest.StashKey[pytest.Session]()


def pytest_sessionstart(session: pytest.Session) -> None:
    session.config.stash[_SESSION] = session


def pytest_collection_finish() -> None:
    """One thread where torch is used at all: tests of the router and the API are without.

    Passes of a tiny model are too short for several threads, and on a busy machine threads that
    wait for each other at every layer make them a hundred times slower.
    """
    if "torch" in sys.modules:
        sys.modules["torch"].set_num_threads(1)


@pytest.hookimpl(trylast=True)
def pytest_unconfigure(config: pytest.Config) -> None:
    """End here where Ray was used: all is reported, and what follows crashed one run in many.

    `ray.shutdown` leaves threads behind (gRPC's, its own, and the event loop of Serve's handles),
    and the interpreter would be taken apart under them (compare ray-project/ray#31145).
    """
    session = config.stash.get(_SESSION, None)
    if "ray" in sys.modules and session is not None:
        atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(int(session.exitstatus))


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
