"""Copies between the host and the device of a model: the only place where a pass may make one.

The host runs ahead of a GPU and must not wait for it within a pass. A copy from ordinary memory
waits, and so does everything that looks at a value. So uploads go through pinned memory without
waiting (torch keeps the buffer until the copy is done). A pass ends with one download, `fetch`,
which waits for all of it. Both are plain conversions on a CPU.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor


def to_device(
    values: float | Sequence[Any],  # numbers, or lists of one length
    device: torch.device | str,
    dtype: torch.dtype | None = None,
) -> Tensor:
    """`torch.tensor(values, dtype=dtype)` on the device, without waiting for it."""
    device = torch.device(device)
    pinned = device.type == "cuda"
    return _move(torch.tensor(values, dtype=dtype, pin_memory=pinned), device)


def array_to_device(array: np.ndarray, device: torch.device | str) -> Tensor:
    """Copy the array to the device without waiting; on a CPU they share memory."""
    device = torch.device(device)
    host = torch.from_numpy(array)
    return _move(host.pin_memory() if device.type == "cuda" else host, device)


def copy_into(target: Tensor, array: np.ndarray) -> None:
    """Overwrite a tensor with the array's values, without waiting for its device."""
    host = torch.from_numpy(array)
    target.copy_(host.pin_memory() if target.is_cuda else host, non_blocking=True)


def fetch(tensor: Tensor) -> list[Any]:
    """Return the values as nested lists. It waits for the device: once a pass, at its end."""
    return tensor.tolist()


def wait_for(device: torch.device) -> None:
    """Return when the device has computed all that it was given; at once on a CPU.

    Only where nothing is fetched: a pass that gives no tokens, which is to be timed to its end.
    """
    if device.type == "cuda":
        torch.cuda.current_stream(device).synchronize()


def _move(host: Tensor, device: torch.device) -> Tensor:
    return host if device.type == "cpu" else host.to(device, non_blocking=True)
