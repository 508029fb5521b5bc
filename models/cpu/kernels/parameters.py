"""Reads the parameters of kernels: int64 numbers in a row, see `compiling.py`.

The first ones are the same in all kernels. Two counters share the work among the threads of a pass,
and an address leads to the pass's table. The table holds the values that change from pass to pass,
written once for all kernels. The place of a kernel's rows is given as a field of that table.
"""

from __future__ import annotations

from models.cpu.kernels.compiling import inline
from models.cpu.kernels.scalars import read_int

WORD = 8  # bytes of a parameter

# Parameters of every kernel.
(
    TAKEN,  # pieces of the work that threads have taken; 0 before
    THREADS_BEGUN,  # 0 before
    PASS,  # address of the table
) = range(3)
NUM_COMMON = 3

# Fields of the table.
(
    NUM_ROWS,  # R
    POSITIONS,  # [R] int64
    SLOTS,  # [R] int64, block * B + place in it
    TASKS,  # attention's: [tasks, 4] int64
    NUM_TASKS,
    BLOCK_IDS,  # int64
    PICKED,  # [R] int64: what rows are copies of, token ids or rows of another pass
    SHARED_ROWS,  # int64: rows whose keys and values are stored once more
    SHARED_SLOTS,  # int64, where
    NUM_SHARED,
    PACKED_ROWS,  # rows of the product that comes next, see `packed.py`
    FIRST_BUFFER,  # addresses of rows from here on
) = range(12)
NUM_BUFFERS = 7
NUM_FIELDS = FIRST_BUFFER + NUM_BUFFERS


@inline
def get(parameters: int, index: int) -> int:
    """Return the parameter of that number."""
    return read_int(parameters + WORD * index)


@inline
def of_pass(parameters: int, field: int) -> int:
    """Read a field of the pass's table."""
    return read_int(get(parameters, PASS) + WORD * field)


@inline
def rows_at(parameters: int, index: int) -> int:
    """Return the address of the rows whose table field is the parameter of that number."""
    return of_pass(parameters, get(parameters, index))
