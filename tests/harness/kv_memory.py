"""A runner's keys and values: the memory that was allocated for them, and one layer's."""

from typing import Any

from torch import Tensor

from models.engine.runner import ModelRunner
from models.kv.storage import KVBlocks


def own_storage(runner: ModelRunner) -> KVBlocks:
    """The storage of an engine of our own."""
    storage = runner.backend.storage
    assert isinstance(storage, KVBlocks)
    return storage


def kv_bytes(runner: ModelRunner) -> int:
    storage: Any = runner.backend.storage
    if runner.config.engine == "vllm":
        return sum(layer.nbytes for layer in storage.layers)
    return sum(part.nbytes for layer in storage.blocks for part in layer)


def last_keys(runner: ModelRunner) -> Tensor:
    """The last layer's keys by block, in whatever layout its engine has."""
    storage: Any = runner.backend.storage
    keys: Tensor = storage.layers[-1] if runner.config.engine == "vllm" else storage.blocks[-1][0]
    return keys
