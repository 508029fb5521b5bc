"""LoRA adapters in vLLM's slots: which rows of a pass are computed with which.

All adapters of a config are loaded at the start, each in a slot of its own, and none leaves.
So a pass only says the adapter of each row. Rows of the model itself have none.

vLLM's operations for CPUs take index -1 for such a row, and so the last slot (release 0.32.0). So
on a CPU there is one slot more, which stays empty.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import chain, repeat
from typing import Any

import torch
from vllm.lora.request import LoRARequest

from models.config import EngineConfig
from models.kv.rows import SequenceRows


def num_slots(config: EngineConfig) -> int:
    """Return the slots that the adapters of `config` need; at least one, which vLLM insists on."""
    num_empty = int(torch.device(config.device).type == "cpu")
    return max(1, len(config.lora_modules) + num_empty)


class Adapters:
    """The adapters of one model, or a rank's part of them.

    Args:
        runner: vLLM's, which has room for them.
        modules: folders by name; their numbers are those of `SequenceRows`.

    Raises:
        ValueError: vLLM cannot serve one; names it.
    """

    def __init__(self, runner: Any, modules: Mapping[str, str]) -> None:
        self._runner = runner
        self._are_any = bool(modules)
        if not modules:
            return
        runner.maybe_remove_all_loras(runner.lora_config)  # those that graphs were captured with
        for number, (name, folder) in enumerate(modules.items(), 1):
            try:
                runner.add_lora(LoRARequest(name, number, folder))
            except (ValueError, RuntimeError, AssertionError, KeyError) as error:
                raise ValueError(
                    f"lora_modules.{name}: vLLM cannot serve the adapter: {error}"
                ) from error
        manager = runner.lora_manager._adapter_manager
        for slot, number in enumerate(manager.lora_index_to_id):
            if number is None:
                for layer in manager.modules.values():
                    layer.reset_lora(slot)

    def num_of(self, sequences: Sequence[SequenceRows]) -> int:
        """Return how many adapters the rows have, all together."""
        return len({rows.adapter for rows in sequences if rows.adapter})

    def use(self, sequences: Sequence[SequenceRows], num_rows: int) -> None:
        """Have the coming pass compute each session's rows with its adapter.

        Args:
            sequences: in the order of the pass.
            num_rows: of the pass; those behind the sessions' own have no adapter.
        """
        if not self._are_any:
            return
        of_rows = _repeated(sequences, [len(rows.token_ids) for rows in sequences])
        of_logits = _repeated(sequences, [rows.num_logits for rows in sequences])
        padding = (0,) * (num_rows - len(of_rows))
        # No request is named: all adapters are there, and nothing is to be loaded or touched.
        self._runner._set_active_loras(of_logits, of_rows + padding, set())


def _repeated(sequences: Sequence[SequenceRows], counts: Sequence[int]) -> tuple[int, ...]:
    numbers = [repeat(rows.adapter, count) for rows, count in zip(sequences, counts, strict=True)]
    return tuple(chain.from_iterable(numbers))
