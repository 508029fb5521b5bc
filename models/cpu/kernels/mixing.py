"""Small matrix products that keep a row's bits: sums of rows of a matrix, each times a number.

out[i, :] = (out[i, :] +) sum over k of coefficients[i, k] * matrix[k, :]. Terms are added in the
order of k, each step rounded once. A few rows and vectors of columns are computed together. So the
matrix is read once for all of the rows, and sums do not wait for each other. Their number makes no
difference to any result.

For example, take 6 rows of width 80, with vectors of 16 numbers. Rows 0 to 3 go together, four
vectors of columns at a time (0-63), then the last vector (64-79). Rows 4 and 5 follow in the same
way.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils

from models.cpu.kernels.compiling import inline
from models.cpu.kernels.emit import (
    F32,
    FLOATS,
    I64,
    NUM_LANES,
    Builder,
    constant,
    emit_fma,
    instruction,
    literal,
    plus,
    pointer,
    prefetch,
    spread,
    typed,
)
from models.cpu.kernels.lanes import num_bytes, read_lanes

FLOAT_BYTES = 4
VECTOR_BYTES = FLOAT_BYTES * NUM_LANES


class Vectors(NamedTuple):
    """Four vectors of columns of a matrix: where they are in its first row."""

    first: int
    second: int
    third: int
    fourth: int


class Product(NamedTuple):
    """The shape of a product, beside its vectors."""

    depth: int  # rows of the matrix
    step: int  # bytes from one to the next
    stride: int  # numbers from one row's coefficients to the next row's
    out_stride: int  # numbers from one row's sums to the next row's
    ahead: int  # bytes from what is read to what will be soon


@instruction
def _mix(  # noqa: PLR0913  (an instruction takes numbers one by one)
    context: Any,
    out: Any,
    coefficients: Any,
    vectors: Any,
    product: Any,
    num_rows: Any,
    num_vectors: Any,
    adds: Any,
    like: Any,
) -> Any:
    """Multiply `num_rows` rows by the first `num_vectors` vectors: constants of the code."""
    counts = literal(num_rows, "num_rows"), literal(num_vectors, "num_vectors")
    is_added = literal(adds, "adds") != 0

    def build(builder: Builder, *values: ir.Value) -> None:
        out, coefficients, vectors, product = values[:4]
        depth, step, stride, out_stride, ahead = cgutils.unpack_tuple(builder, product)
        starts = cgutils.unpack_tuple(builder, vectors)[: counts[1]]

        def apart(number: int, stride: ir.Value) -> ir.Value:
            return builder.mul(stride, ir.Constant(I64, FLOAT_BYTES * number))

        factors = [builder.add(coefficients, apart(row, stride)) for row in range(counts[0])]
        rows = [builder.add(out, apart(row, out_stride)) for row in range(counts[0])]
        places = [
            [
                pointer(builder, plus(builder, row, VECTOR_BYTES * i), FLOATS)
                for i in range(counts[1])
            ]
            for row in rows
        ]
        # LLVM turns this memory into registers.
        sums = [[cgutils.alloca_once(builder, FLOATS) for _ in starts] for _ in rows]
        zero = constant(FLOATS, 0.0)
        for of_row, to in zip(sums, places, strict=True):
            for each, place in zip(of_row, to, strict=True):
                builder.store(builder.load(place, align=4) if is_added else zero, each)
        with cgutils.for_range(builder, depth) as loop:
            offset = builder.mul(loop.index, step)
            at = [builder.add(start, offset) for start in starts]
            some = [read_lanes(builder, place, like) for place in at]
            for place in at:
                prefetch(builder, builder.add(place, ahead))
            index = builder.mul(loop.index, ir.Constant(I64, FLOAT_BYTES))
            for factor, of_row in zip(factors, sums, strict=True):
                number = builder.load(pointer(builder, builder.add(factor, index), F32), align=4)
                number = spread(builder, number, FLOATS)
                for each, lanes in zip(of_row, some, strict=True):
                    builder.store(emit_fma(builder, number, lanes, builder.load(each)), each)
        for of_row, to in zip(sums, places, strict=True):
            for each, place in zip(of_row, to, strict=True):
                builder.store(builder.load(each), place, align=4)

    given = (types.int64, types.int64, vectors, product, num_rows, num_vectors, adds, like)
    return typed(build, types.void, *given)


@inline
def _mix_rows(
    rows: tuple[int, int, int],  # sums, coefficients, and how many
    vectors: Vectors,
    product: Product,
    num_vectors: Any,
    adds: Any,
    like: np.generic,
) -> None:
    out, coefficients, num_rows = rows
    row = 0
    while row < num_rows:
        if num_rows - row >= 4:
            _mix(out, coefficients, vectors, product, 4, num_vectors, adds, like)
            count = 4
        elif num_rows - row >= 2:
            _mix(out, coefficients, vectors, product, 2, num_vectors, adds, like)
            count = 2
        else:
            _mix(out, coefficients, vectors, product, 1, num_vectors, adds, like)
            count = 1
        row += count
        out += FLOAT_BYTES * count * product.out_stride
        coefficients += FLOAT_BYTES * count * product.stride


@inline
def mix(
    rows: tuple[int, int, int],
    vectors: Vectors,
    product: Product,
    num_vectors: int,
    like: np.generic,
) -> None:
    """Write the product of rows and up to four vectors, which may lie anywhere.

    Args:
        rows: addresses of sums [num_rows, 16 * num_vectors] and coefficients [num_rows, depth],
            both float32, and `num_rows`.
        vectors: of the matrix; of those after the last nothing is read.
        product: its sizes.
        num_vectors: how many there are.
        like: the matrix's type.
    """
    if num_vectors == 4:
        _mix_rows(rows, vectors, product, 4, 0, like)
        return
    out, coefficients, num_rows = rows
    for number in range(num_vectors):
        some = Vectors(vectors[number], 0, 0, 0)
        _mix_rows((out + VECTOR_BYTES * number, coefficients, num_rows), some, product, 1, 0, like)


@inline
def mix_into(
    rows: tuple[int, int, int], matrix: int, width: int, product: Product, like: np.generic
) -> None:
    """Add the product of rows and a matrix [depth, width] to sums, see `mix`."""
    out, coefficients, num_rows = rows
    step, column = num_bytes(like) * NUM_LANES, 0
    while column < width:
        first = matrix + num_bytes(like) * column
        own = (out + FLOAT_BYTES * column, coefficients, num_rows)
        vectors = Vectors(first, first + step, first + 2 * step, first + 3 * step)
        if column + 4 * NUM_LANES <= width:
            _mix_rows(own, vectors, product, 4, 1, like)
            column += 4 * NUM_LANES
        else:
            _mix_rows(own, vectors, product, 1, 1, like)
            column += NUM_LANES
