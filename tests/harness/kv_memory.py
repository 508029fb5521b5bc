"""How much memory a runner's keys and values take, by what was allocated."""

from models.engine.runner import ModelRunner


def kv_bytes(runner: ModelRunner) -> int:
    return sum(part.nbytes for layer in runner.backend.storage.blocks for part in layer)
