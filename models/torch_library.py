"""Kernels as operations of torch, `torch.ops.outrider.NAME`.

So torch knows their writes and results. Dispatch modes count them, tensors without values (meta,
fake) pass through them, and Dynamo takes them into its graph. They give a tensor of the right shape
on a device without values.

Triton comes with torch's builds for GPUs. Its first launch builds a library, with a C compiler and
Python's headers. Where Triton is missing or cannot launch, and on a CPU, callers have the same in
torch's own operations. TRITON_INTERPRET=1 runs kernels on CPUs, slowly: that is how tests run them.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import cache
from importlib.util import find_spec
from subprocess import SubprocessError
from typing import Any

import torch
from torch import Tensor

_LIBRARY = torch.library.Library("outrider", "DEF")

_logger = logging.getLogger(__name__)


def has_kernels(device: torch.device) -> bool:
    """Return whether Triton's kernels run on this device, by one launch for each GPU.

    A device without values counts as a GPU that runs them.
    """
    if device.type not in ("cuda", "meta") or not _is_installed():
        return False
    return device.type == "meta" or _can_launch(device)


@cache
def _is_installed() -> bool:
    return find_spec("triton") is not None


@cache
def _can_launch(device: torch.device) -> bool:
    from triton.errors import TritonError

    try:
        _launch_nothing(device)
    except (ImportError, OSError, RuntimeError, SubprocessError, TritonError) as error:
        _logger.warning(
            "Triton launches no kernel on %s, so torch's own operations serve, which are slower. "
            "Kernels need a C compiler (gcc), Python's headers (python3-dev) and a driver for this "
            "torch: %s",
            device,
            error,
        )
        return False
    return True


def _launch_nothing(device: torch.device) -> None:
    """Compile and launch a kernel that does nothing.

    Raises:
        RuntimeError: there is no C compiler, or no GPU.
        SubprocessError: the compiler failed.
        OSError: what it built cannot be kept.
        ImportError: what it built cannot be loaded.
        TritonError: the kernel cannot be compiled for the GPU.
    """
    import triton

    @triton.jit
    def nothing() -> None:
        pass

    # Triton launches on the current GPU.
    with torch.cuda.device(-1 if device.index is None else device):
        nothing[(1,)]()


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
