"""Kernels as operations of torch, `torch.ops.outrider.NAME`.

So torch knows their writes and results. Dispatch modes count them, tensors without values (meta,
fake) pass through them, and Dynamo takes them into its graph. They give a tensor of the right shape
on a device without values.

Triton comes with torch's builds for GPUs. Where it is missing, or the device is a CPU, the callers
have the same in torch's own operations. TRITON_INTERPRET=1 runs kernels on CPUs, slowly: that is
how tests run them.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor

_LIBRARY = torch.library.Library("outrider", "DEF")


def has_kernels(device: torch.device) -> bool:
    """Return whether Triton's kernels are for this device; one without values counts as a GPU."""
    return device.type in ("cuda", "meta") and _is_installed()


@cache
def _is_installed() -> bool:
    return find_spec("triton") is not None


def register(schema: str, launch: Callable[..., Any], empty: Callable[..., Any]) -> Any:
    """Make `launch` an operation of torch.

    Args:
        schema: name, arguments (the first is a tensor) and results, as torch.library has them.
        launch: computes it.
        empty: of the same arguments, the results without their values.

    Returns:
        What calls it.
    """
    name = schema.partition("(")[0]
    _LIBRARY.define(schema)

    def launch_there(first: Tensor, *others: Any) -> Any:
        # Triton launches on the current GPU, which need not be the one that the tensors are on.
        if first.is_cuda and first.get_device() != torch.cuda.current_device():
            with torch.cuda.device_of(first):
                return launch(first, *others)
        return launch(first, *others)

    _LIBRARY.impl(name, launch_there, "CompositeExplicitAutograd")
    torch.library.register_fake(f"outrider::{name}", empty, lib=_LIBRARY)
    return getattr(torch.ops.outrider, name)
