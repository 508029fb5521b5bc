"""Rows times a weight, for any number of rows, each row's bits its own.

Threads take turns at panels of the weight (`tile.py`). A thread goes with its panel over all rows,
a few at a time. The panel stays in the cache meanwhile. Scale, bias and residual are applied to the
float32 sums, which are rounded once. A gated product has the gates in the left half of each panel
and their partners in the right half. It writes SiLU(gate) times the partner.

Shape letters: R rows, N outputs, I inputs, P panels.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from models.cpu.kernels.compiling import inline
from models.cpu.kernels.emit import NUM_LANES
from models.cpu.kernels.lanes import (
    BFLOAT16,
    FLOAT32,
    Lanes,
    add,
    div,
    exp,
    load,
    load_first,
    mul,
    num_bytes,
    rounded,
    splat,
    store,
    store_first,
    sub,
)
from models.cpu.kernels.matrix import (
    CONFIG_BYTES,
    configure,
    multiply_matrix,
    multiply_row,
    release,
)
from models.cpu.kernels.matrix import MAX_ROWS as MAX_MATRIX_ROWS
from models.cpu.kernels.parameters import (
    NUM_COMMON,
    NUM_ROWS,
    TAKEN,
    WORD,
    get,
    of_pass,
    rows_at,
)
from models.cpu.kernels.scalars import address_of, stack_bytes, take_next
from models.cpu.kernels.tile import MAX_ROWS, PANEL, multiply_tile

(
    WEIGHT,  # P panels, one after the other
    PANEL_BYTES,
    NUM_INPUTS,  # of packed rows a multiple of their groups
    ROW_BYTES,  # size of a row of inputs
    NUM_OUTPUTS,
    SCALES,  # [P * PANEL] float32; 0: none
    BIAS,  # [P * PANEL] float32; 0: none
    SOURCE,  # field of rows [R, I], or of packed ones
    TARGET,  # field of [R, N]
    RESIDUAL,  # field of what is added, [R, N]; 0: none
    IS_GATED,
    IS_WIDE,  # rounded outputs are written as float32
    PANELS_AT_ONCE,  # that a thread takes
    PANELS_APART,  # from where a thread begins to where it likely begins next
) = range(NUM_COMMON, NUM_COMMON + 14)
NUM_PARAMETERS = NUM_COMMON + 14

_FLOAT_BYTES = 4
_STACK_BYTES = MAX_ROWS * PANEL * _FLOAT_BYTES
_MATRIX_STACK_BYTES = MAX_MATRIX_ROWS * PANEL * _FLOAT_BYTES
_HALF = PANEL // 2
_ZERO, _ONE = np.float32(0), np.float32(1)
_PACKED8, _PACKED4 = np.int8(0), np.uint8(0)  # see `packed.py`


class _Panel(NamedTuple):
    """A panel by its number, its address, and the way from its end to this thread's likely next."""

    number: int
    address: int
    jump: int


class _Kinds(NamedTuple):
    """Numbers of the types that rows and weights have in memory."""

    rows: Any
    weights: Any


@inline
def _sums(parameters: int, sums: int, number: int, column: int) -> Lanes:
    """Return a vector of a row's sums, scaled and with its bias; `number` counts all columns."""
    some = load(sums + _FLOAT_BYTES * column, FLOAT32)
    scales, bias = get(parameters, SCALES), get(parameters, BIAS)
    if scales != 0:
        some = mul(some, load(scales + _FLOAT_BYTES * number, FLOAT32))
    if bias != 0:
        some = add(some, load(bias + _FLOAT_BYTES * number, FLOAT32))
    return some


@inline
def _write(parameters: int, row: int, first: int, some: Lanes, like: np.generic) -> None:
    """Write one vector of outputs, from number `first` on, of a row."""
    size, num_outputs = num_bytes(like), get(parameters, NUM_OUTPUTS)
    number, count = row * num_outputs + first, num_outputs - first
    residual, target = get(parameters, RESIDUAL), rows_at(parameters, TARGET)
    if residual != 0:
        place = of_pass(parameters, residual) + size * number
        some = add(
            some, load(place, like) if count >= NUM_LANES else load_first(place, like, count)
        )
    if get(parameters, IS_WIDE) != 0:
        some = rounded(some, like)
        if count >= NUM_LANES:
            store(target + _FLOAT_BYTES * number, some, FLOAT32)
        else:
            store_first(target + _FLOAT_BYTES * number, some, FLOAT32, count)
    elif count >= NUM_LANES:
        store(target + size * number, some, like)
    else:
        store_first(target + size * number, some, like, count)


@inline
def _finish_row(parameters: int, row: int, panel: int, sums: int, like: np.generic) -> None:
    num_outputs, first = get(parameters, NUM_OUTPUTS), panel * PANEL
    for column in range(0, min(PANEL, num_outputs - first), NUM_LANES):
        some = _sums(parameters, sums, first + column, column)
        _write(parameters, row, first + column, some, like)


@inline
def _finish_gated_row(parameters: int, row: int, panel: int, sums: int, like: np.generic) -> None:
    """Finish a gated row; each number is rounded where transformers rounds it."""
    num_outputs, first = get(parameters, NUM_OUTPUTS), panel * _HALF
    for column in range(0, min(_HALF, num_outputs - first), NUM_LANES):
        number = panel * PANEL + column
        gate = rounded(_sums(parameters, sums, number, column), like)
        below = add(splat(_ONE), exp(sub(splat(_ZERO), gate)))
        opened = rounded(div(gate, below), like)
        factor = rounded(_sums(parameters, sums, number + _HALF, column + _HALF), like)
        _write(parameters, row, first + column, mul(opened, factor), like)


@inline
def _multiply_some(
    parameters: int, row: int, count: int, panel: _Panel, sums: int, kinds: _Kinds
) -> None:
    """Multiply `count` rows from `row` on by a panel; the code has one loop for each count."""
    num_inputs = get(parameters, NUM_INPUTS)
    row_bytes = get(parameters, ROW_BYTES)
    rows = rows_at(parameters, SOURCE) + row * row_bytes
    weight, jump = panel.address, panel.jump
    if count == 6:
        multiply_tile(sums, rows, row_bytes, weight, jump, num_inputs, 6, kinds.rows, kinds.weights)
    elif count == 5:
        multiply_tile(sums, rows, row_bytes, weight, jump, num_inputs, 5, kinds.rows, kinds.weights)
    elif count == 4:
        multiply_tile(sums, rows, row_bytes, weight, jump, num_inputs, 4, kinds.rows, kinds.weights)
    elif count == 3:
        multiply_tile(sums, rows, row_bytes, weight, jump, num_inputs, 3, kinds.rows, kinds.weights)
    elif count == 2:
        multiply_tile(sums, rows, row_bytes, weight, jump, num_inputs, 2, kinds.rows, kinds.weights)
    else:
        multiply_tile(sums, rows, row_bytes, weight, jump, num_inputs, 1, kinds.rows, kinds.weights)


@inline
def _finish_rows(
    parameters: int, row: int, count: int, panel: int, sums: int, like: np.generic
) -> None:
    for i in range(count):
        of_row = sums + _FLOAT_BYTES * PANEL * i
        if get(parameters, IS_GATED) != 0:
            _finish_gated_row(parameters, row + i, panel, of_row, like)
        else:
            _finish_row(parameters, row + i, panel, of_row, like)


@inline
def _multiply_panel(parameters: int, panel: _Panel, sums: int, kinds: _Kinds) -> None:
    num_rows, row = of_pass(parameters, NUM_ROWS), 0
    while row < num_rows:
        count = min(MAX_ROWS, num_rows - row)
        _multiply_some(parameters, row, count, panel, sums, kinds)
        _finish_rows(parameters, row, count, panel.number, sums, kinds.rows)
        row += count


@inline
def _num_panels(parameters: int) -> int:
    columns = _HALF if get(parameters, IS_GATED) != 0 else PANEL
    return (get(parameters, NUM_OUTPUTS) + columns - 1) // columns


@inline
def _take_panels(parameters: int) -> tuple[int, int]:
    """Take the next panels that no thread has taken, first and stop; equal when there are none."""
    num_panels = _num_panels(parameters)
    at_once = get(parameters, PANELS_AT_ONCE)
    first = at_once * take_next(parameters + WORD * TAKEN)
    return min(first, num_panels), min(first + at_once, num_panels)


@inline
def _multiply(parameters: int, kinds: _Kinds) -> None:
    """Do one thread's work: panels as long as there are any.

    Threads that are as fast as each other take panels in turn. So a thread asks for the weights of
    those that it will likely take next. None is taken for that: another thread may be free first.
    """
    sums = stack_bytes(_STACK_BYTES)
    weight, num_bytes = get(parameters, WEIGHT), get(parameters, PANEL_BYTES)
    num_panels, apart = _num_panels(parameters), get(parameters, PANELS_APART)
    while True:
        first, stop = _take_panels(parameters)
        if first == stop:
            break
        for number in range(first, stop):
            follower = number + 1 if number + 1 < stop else first + apart
            if follower >= num_panels:
                follower = number  # there is none
            jump = (follower - number - 1) * num_bytes
            panel = _Panel(number, weight + number * num_bytes, jump)
            _multiply_panel(parameters, panel, sums, kinds)


def multiply_bfloat16_by_matrix(parameters: Any) -> None:
    """Multiply bfloat16 on matrix registers; the inputs are a multiple of `INPUTS_A_STEP`."""
    own = address_of(parameters)
    sums, config = stack_bytes(_MATRIX_STACK_BYTES), stack_bytes(CONFIG_BYTES)
    num_rows, num_inputs = of_pass(own, NUM_ROWS), get(own, NUM_INPUTS)
    row_bytes = get(own, ROW_BYTES)
    num_parts = max(1, (num_rows + MAX_MATRIX_ROWS - 1) // MAX_MATRIX_ROWS)
    most, configured = max(1, (num_rows + num_parts - 1) // num_parts), 0
    while True:
        first, stop = _take_panels(own)
        if first == stop:
            break
        for panel in range(first, stop):
            weight = get(own, WEIGHT) + panel * get(own, PANEL_BYTES)
            for row in range(0, num_rows, most):
                count = min(most, num_rows - row)
                rows = rows_at(own, SOURCE) + row * row_bytes
                if num_rows == 1:
                    multiply_row(sums, rows, weight, num_inputs)
                else:
                    if count != configured:
                        configure(config, count)
                        configured = count
                    multiply_matrix(sums, rows, row_bytes, weight, num_inputs)
                _finish_rows(own, row, count, panel, sums, BFLOAT16)
    if configured != 0:
        release()


def multiply_bfloat16(parameters: Any) -> None:
    """Multiply rows and weights of bfloat16."""
    _multiply(address_of(parameters), _Kinds(BFLOAT16, BFLOAT16))


def multiply_float32(parameters: Any) -> None:
    """Multiply rows and weights of float32."""
    _multiply(address_of(parameters), _Kinds(FLOAT32, FLOAT32))


def multiply_bfloat16_packed8(parameters: Any) -> None:
    """Multiply packed rows and weights of 8 bits; outputs are bfloat16."""
    _multiply(address_of(parameters), _Kinds(BFLOAT16, _PACKED8))


def multiply_float32_packed8(parameters: Any) -> None:
    """Multiply packed rows and weights of 8 bits; outputs are float32."""
    _multiply(address_of(parameters), _Kinds(FLOAT32, _PACKED8))


def multiply_bfloat16_packed4(parameters: Any) -> None:
    """Multiply packed rows and weights of 4 bits; outputs are bfloat16."""
    _multiply(address_of(parameters), _Kinds(BFLOAT16, _PACKED4))


def multiply_float32_packed4(parameters: Any) -> None:
    """Multiply packed rows and weights of 4 bits; outputs are float32."""
    _multiply(address_of(parameters), _Kinds(FLOAT32, _PACKED4))
