"""Tiny seeded random checkpoints, written once per run as ordinary HF directories; how runs end."""

from __future__ import annotations

import atexit
import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

TINY_VOCAB_SIZE = 512
_SESSION = pytest.StashKey[pytest.Session]()

# Passes of a tiny model are too short for several threads, and on a busy machine threads that wait
# for each other at every layer make them a hundred times slower.
torch.set_num_threads(1)


def pytest_sessionstart(session: pytest.Session) -> None:
    session.config.stash[_SESSION] = session


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


def write_tiny_llama(directory: Path, *, seed: int = 0, **overrides: object) -> Path:
    """A random Llama with grouped heads in `directory`; `overrides` are LlamaConfig fields."""
    fields: dict[str, object] = {
        "vocab_size": TINY_VOCAB_SIZE,
        "hidden_size": 64,
        "intermediate_size": 176,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 1024,
        "tie_word_embeddings": True,
        "bos_token_id": None,
        "eos_token_id": 1,
        "initializer_range": 0.2,  # spreads the logits, so that an error would move an argmax
    }
    generator_state = torch.get_rng_state()
    torch.manual_seed(seed)
    try:
        model = LlamaForCausalLM(LlamaConfig(**{**fields, **overrides}))
    finally:
        torch.set_rng_state(generator_state)
    model.to(torch.bfloat16).save_pretrained(directory)
    return directory


@pytest.fixture(scope="session")
def make_tiny_llama(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., str]:
    """A function that writes a tiny Llama (fields of LlamaConfig, `seed`) and returns its path."""

    def make(*, seed: int = 0, **overrides: object) -> str:
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
