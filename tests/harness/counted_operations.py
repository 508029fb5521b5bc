"""Counts the operations that torch is asked for: on a GPU each is a launch or some."""

from __future__ import annotations

from typing import Any

from torch.utils._python_dispatch import TorchDispatchMode


class CountedOperations(TorchDispatchMode):
    """Counts while it is entered; views are operations that launch nothing, and are left out."""

    def __init__(self) -> None:
        super().__init__()
        self.count: int = 0

    def __torch_dispatch__(
        self, function: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        self.count += not function.is_view
        return function(*args, **(kwargs or {}))
