"""Small matrix products that keep a row's bits: sums of rows of a matrix, each times a number.

out[i, :] = (out[i, :] +) sum over k of coefficients[i, k] * matrix[k, :], added in the order of k,
each step rounded once. Four rows are computed together, so that what is read of the matrix serves
all of them; how many there are makes no difference to any.

For example 6 rows of width 80, with vectors of 16 numbers: rows 0 to 3 together, two vectors of
columns at a time (0-31, 32-63), then the last vector (64-79) row by row; rows 4 and 5 each alone,
four vectors at a time (0-63), then the last one.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from models.cpu.kernels.compiling import inline
from models.cpu.kernels.emit import NUM_LANES
from models.cpu.kernels.lanes import FLOAT32, Lanes, fma, load, num_bytes, splat, store
from models.cpu.kernels.scalars import read_float

_FLOAT_BYTES = 4
_VECTOR_BYTES = _FLOAT_BYTES * NUM_LANES
_ROWS_TOGETHER = 4
_PAIR = 2 * NUM_LANES
_ZERO = np.float32(0)


class Product(NamedTuple):
    """The sizes of a product."""

    num_rows: int
    depth: int
    stride: int  # numbers from one row's coefficients to the next row's
    width: int  # a multiple of NUM_LANES


@inline
def mix(
    out: int,  # [num_rows, width] float32
    coefficients: int,  # [num_rows, depth] float32, rows `stride` numbers apart
    matrix: int,  # [depth, width] of type `like`
    product: Product,
    adds: bool,  # to what is in `out`; else the product takes its place
    like: np.generic,
) -> None:
    """Computes the product."""
    row = 0
    while row + _ROWS_TOGETHER <= product.num_rows:
        _mix_four(
            out + _FLOAT_BYTES * row * product.width,
            coefficients + _FLOAT_BYTES * row * product.stride,
            matrix,
            product,
            adds,
            like,
        )
        row += _ROWS_TOGETHER
    while row < product.num_rows:
        _mix_one(
            out + _FLOAT_BYTES * row * product.width,
            coefficients + _FLOAT_BYTES * row * product.stride,
            matrix,
            product,
            adds,
            like,
        )
        row += 1


@inline
def _start(out: int, adds: bool) -> Lanes:
    return load(out, FLOAT32) if adds else splat(_ZERO)


@inline
def _mix_four(
    out: int,
    coefficients: int,
    matrix: int,
    product: Product,
    adds: bool,
    like: np.generic,
) -> None:
    size = num_bytes(like)
    column = 0
    while column + _PAIR <= product.width:
        _mix_four_by_two(
            out + _FLOAT_BYTES * column,
            coefficients,
            matrix + size * column,
            product,
            adds,
            like,
        )
        column += _PAIR
    if column < product.width:
        for row in range(_ROWS_TOGETHER):
            _mix_vector(
                out + _FLOAT_BYTES * (row * product.width + column),
                coefficients + _FLOAT_BYTES * row * product.stride,
                matrix + size * column,
                product,
                adds,
                like,
            )


@inline
def _mix_four_by_two(
    out: int,
    coefficients: int,
    matrix: int,
    product: Product,
    adds: bool,
    like: np.generic,
) -> None:
    """Two vectors of columns of four rows: as many sums as the CPU can keep busy with."""
    # Eight sums that do not wait for each other. They are variables, not an array: they must stay
    # in registers over the whole depth.
    out1 = out + _FLOAT_BYTES * product.width
    out2 = out1 + _FLOAT_BYTES * product.width
    out3 = out2 + _FLOAT_BYTES * product.width
    low0, high0 = _start(out, adds), _start(out + _VECTOR_BYTES, adds)
    low1, high1 = _start(out1, adds), _start(out1 + _VECTOR_BYTES, adds)
    low2, high2 = _start(out2, adds), _start(out2 + _VECTOR_BYTES, adds)
    low3, high3 = _start(out3, adds), _start(out3 + _VECTOR_BYTES, adds)
    # Each step reads two vectors of the matrix once and uses them for all four rows.
    apart, step = _FLOAT_BYTES * product.stride, num_bytes(like) * product.width
    place = matrix
    for k in range(product.depth):
        low, high = load(place, like), load(place + num_bytes(like) * NUM_LANES, like)
        place += step
        factors = coefficients + _FLOAT_BYTES * k
        factor = splat(read_float(factors))
        low0, high0 = fma(factor, low, low0), fma(factor, high, high0)
        factor = splat(read_float(factors + apart))
        low1, high1 = fma(factor, low, low1), fma(factor, high, high1)
        factor = splat(read_float(factors + 2 * apart))
        low2, high2 = fma(factor, low, low2), fma(factor, high, high2)
        factor = splat(read_float(factors + 3 * apart))
        low3, high3 = fma(factor, low, low3), fma(factor, high, high3)
    store(out, low0, FLOAT32)
    store(out + _VECTOR_BYTES, high0, FLOAT32)
    store(out1, low1, FLOAT32)
    store(out1 + _VECTOR_BYTES, high1, FLOAT32)
    store(out2, low2, FLOAT32)
    store(out2 + _VECTOR_BYTES, high2, FLOAT32)
    store(out3, low3, FLOAT32)
    store(out3 + _VECTOR_BYTES, high3, FLOAT32)


@inline
def _mix_one(
    out: int,
    coefficients: int,
    matrix: int,
    product: Product,
    adds: bool,
    like: np.generic,
) -> None:
    size = num_bytes(like)
    column = 0
    while column + 4 * NUM_LANES <= product.width:
        _mix_one_by_four(
            out + _FLOAT_BYTES * column,
            coefficients,
            matrix + size * column,
            product,
            adds,
            like,
        )
        column += 4 * NUM_LANES
    while column < product.width:
        _mix_vector(
            out + _FLOAT_BYTES * column,
            coefficients,
            matrix + size * column,
            product,
            adds,
            like,
        )
        column += NUM_LANES


@inline
def _mix_one_by_four(
    out: int,
    coefficients: int,
    matrix: int,
    product: Product,
    adds: bool,
    like: np.generic,
) -> None:
    """Four vectors of columns of one row."""
    sum0, sum1 = _start(out, adds), _start(out + _VECTOR_BYTES, adds)
    sum2, sum3 = (
        _start(out + 2 * _VECTOR_BYTES, adds),
        _start(out + 3 * _VECTOR_BYTES, adds),
    )
    step = num_bytes(like) * NUM_LANES
    place = matrix
    for k in range(product.depth):
        factor = splat(read_float(coefficients + _FLOAT_BYTES * k))
        sum0 = fma(factor, load(place, like), sum0)
        sum1 = fma(factor, load(place + step, like), sum1)
        sum2 = fma(factor, load(place + 2 * step, like), sum2)
        sum3 = fma(factor, load(place + 3 * step, like), sum3)
        place += num_bytes(like) * product.width
    store(out, sum0, FLOAT32)
    store(out + _VECTOR_BYTES, sum1, FLOAT32)
    store(out + 2 * _VECTOR_BYTES, sum2, FLOAT32)
    store(out + 3 * _VECTOR_BYTES, sum3, FLOAT32)


@inline
def _mix_vector(
    out: int,
    coefficients: int,
    matrix: int,
    product: Product,
    adds: bool,
    like: np.generic,
) -> None:
    """One vector of columns of one row."""
    sum_ = _start(out, adds)
    for k in range(product.depth):
        factor = splat(read_float(coefficients + _FLOAT_BYTES * k))
        sum_ = fma(factor, load(matrix + num_bytes(like) * k * product.width, like), sum_)
    store(out, sum_, FLOAT32)
