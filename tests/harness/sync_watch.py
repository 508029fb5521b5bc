"""Finds what would make the host wait for a GPU, on a machine without one.

Everything that looks at a tensor's value on the host (`item`, `tolist`, a condition), whose result
has a size that depends on values (`nonzero`, boolean indices), or that copies between host and
device without being told not to wait is noted while a `SyncWatch` is active. On CPU tensors these
are harmless, so what is noted is what would happen on a GPU.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

_LOOKS = {"tolist", "item", "numpy", "cpu", "__bool__", "__int__", "__float__", "__index__"}
_SIZED_BY_VALUES = {
    "aten::nonzero",
    "aten::masked_select",
    "aten::_local_scalar_dense",
    "aten::_unique2",
    "aten::equal",
}


class _Calls(TorchFunctionMode):
    def __init__(self, note: Callable[[str], None]) -> None:
        super().__init__()
        self._note = note

    def __torch_function__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        name = getattr(func, "__name__", "")
        if name in _LOOKS:
            self._note(name)
            with torch._C.DisableTorchFunction():
                return func(*args, **kwargs)
        if name in ("tensor", "as_tensor", "asarray") and kwargs.get("device") is not None:
            self._note(f"{name}(device=...) copies from pageable memory")
        if name == "to" and self._crosses(args, kwargs) and not kwargs.get("non_blocking"):
            self._note("to(device) without non_blocking")
        return func(*args, **kwargs)

    @staticmethod
    def _crosses(args: Sequence[Any], kwargs: Any) -> bool:
        wanted = kwargs.get("device", args[1] if len(args) > 1 else None)
        if isinstance(wanted, str):
            wanted = torch.device(wanted)
        return isinstance(wanted, torch.device) and wanted.type != args[0].device.type


class _Operations(TorchDispatchMode):
    def __init__(self, note: Callable[[str], None]) -> None:
        super().__init__()
        self._note = note

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None
    ) -> Any:
        name = func._schema.name
        if name in _SIZED_BY_VALUES:
            self._note(name)
        if name in ("aten::index", "aten::index_put", "aten::index_put_"):
            indices = [index for index in args[1] if isinstance(index, Tensor)]
            if any(index.dtype in (torch.bool, torch.uint8) for index in indices):
                self._note(f"{name} with a boolean index")
        return func(*args, **(kwargs or {}))


class SyncWatch:
    """`with SyncWatch() as watch: ...`; then `watch.waits` says what would have waited.

    A look that goes through a tensor method is noted once, by the method's name.
    """

    def __init__(self) -> None:
        self.waits: list[str] = []
        self._modes = (_Operations(self._add), _Calls(self._add))

    def __enter__(self) -> SyncWatch:
        for mode in self._modes:
            mode.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        for mode in reversed(self._modes):
            mode.__exit__(*error)

    def _add(self, what: str) -> None:
        frames = [f for f in traceback.extract_stack() if "/models/" in f.filename]
        where = f"{frames[-1].filename.rsplit('/', 1)[1]}:{frames[-1].lineno}" if frames else "test"
        entry = f"{what} in {where}"
        # `item` and conditions on a tensor are noted as methods and again as their operation.
        if what == "aten::_local_scalar_dense" and self.waits and self.waits[-1].endswith(where):
            return
        self.waits.append(entry)
