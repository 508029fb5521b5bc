"""How kernels read their parameters: int64 numbers in a row, see `compiling.py`."""

from __future__ import annotations

from models.cpu.kernels.compiling import inline
from models.cpu.kernels.lanes import read_int

WORD = 8  # bytes of a parameter


@inline
def get(parameters: int, index: int) -> int:
    """The parameter of that number."""
    return read_int(parameters + WORD * index)
