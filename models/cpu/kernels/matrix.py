"""The inner loop of matrix products on CPUs with matrix registers (AMX): up to 16 rows at a time.

A step multiplies 32 inputs of all rows by 32 inputs of a panel's columns, 16 columns at once. It
takes about as long as reading the weights. So a product of 16 rows costs little more than a product
of one row. The panel's layout is that of `tile.py`.

A sum always has the same bits. The even and the odd inputs of a step are two chains of fused
multiply-adds. Their total is added to the sum. Numbers below float32's normal ones count as zero.
The instruction does so for any number of rows. One row alone is multiplied in the same order by
vector instructions, which read weights from memory a quarter faster.

Sources: the Intel 64 and IA-32 manuals on TDPBF16PS and on the tiles' configuration; Linux's
`Documentation/arch/x86/xstate.rst` on asking for them.
"""

from __future__ import annotations

import ctypes
import functools
import platform
import sys
from collections.abc import Sequence
from typing import Any, NamedTuple

from llvmlite import ir
from numba import types
from numba.core import cgutils

from models.cpu.kernels.compiling import inline
from models.cpu.kernels.emit import (
    FLOATS,
    I32,
    I64,
    INTS,
    NUM_LANES,
    Builder,
    call,
    constant,
    emit_fma,
    has_feature,
    instruction,
    plus,
    pointer,
    prefetch,
    spread,
    typed,
)
from models.cpu.kernels.scalars import write_int
from models.cpu.kernels.tile import PANEL

INPUTS_A_STEP = 32
MAX_ROWS = 16
CONFIG_BYTES = 64

_ROW_BYTES = 64  # size of a register row; a register has up to 16
_NUM_SUMS = PANEL // NUM_LANES  # registers 0 to 3: sums of 16 columns each
_INPUTS, _WEIGHTS = _NUM_SUMS, (5, 6, 7)  # the others
_STEP_BYTES = 2 * INPUTS_A_STEP * PANEL
_AHEAD_BYTES = 2048  # weights are asked for so long before they are used
_PAIRS_A_STEP = INPUTS_A_STEP // 2
_PAIR_BYTES = 4 * PANEL  # size of two inputs of all columns

# Palette 1; all registers have rows of 64 bytes, those of weights 16 of them.
_PALETTE, _WIDTHS, _WEIGHT_ROWS = 1, 0x0040004000400040, 0x1010100000000000
_ROWS_OF_OTHERS = 0x0000000101010101

_TINY_IS_ZERO = 0x8040  # bits of MXCSR: numbers below the normal ones are read and written as zero

_ARCH_PRCTL, _ASK, _TILE_DATA = 158, 0x1023, 18  # Linux's numbers on x86-64

_BYTE = ir.IntType(8)
_ADDRESS = _BYTE.as_pointer()


@functools.cache
def has_matrix_registers() -> bool:
    """Return whether kernels may use them: the CPU has them and Linux grants them here."""
    if sys.platform != "linux" or platform.machine() != "x86_64":
        return False
    if not (has_feature("amx-bf16") and has_feature("amx-tile")):
        return False
    return bool(ctypes.CDLL(None).syscall(_ARCH_PRCTL, _ASK, _TILE_DATA) == 0)


def _emit(builder: Builder, name: str, *values: ir.Value) -> None:
    call(builder, f"x86.{name}", ir.VoidType(), *values)


def _register(number: int) -> ir.Constant:
    return ir.Constant(_BYTE, number)


def _at(builder: Builder, address: ir.Value, num_bytes: int = 0) -> ir.Value:
    return builder.inttoptr(plus(builder, address, num_bytes), _ADDRESS)


@instruction
def _load_config(context: Any, address: Any) -> Any:
    def build(builder: Builder, address: ir.Value) -> None:
        _emit(builder, "ldtilecfg", _at(builder, address))

    return typed(build, types.void, types.int64)


@inline
def configure(config: int, num_rows: int) -> None:
    """Set the registers up for so many rows, by what is written to 64 bytes at `config`."""
    write_int(config, _PALETTE)
    write_int(config + 8, 0)
    write_int(config + 16, _WIDTHS)
    write_int(config + 24, _WIDTHS)
    write_int(config + 32, 0)
    write_int(config + 40, 0)
    write_int(config + 48, _WEIGHT_ROWS + num_rows * _ROWS_OF_OTHERS)
    write_int(config + 56, 0)
    _load_config(config)


@instruction
def release(context: Any) -> Any:
    """Give the registers back, so that nobody saves them when threads change."""
    return typed(lambda builder: _emit(builder, "tilerelease"), types.void)


@instruction
def multiply_matrix(
    context: Any, out: Any, rows: Any, row_bytes: Any, panel: Any, num_inputs: Any
) -> Any:
    """Write the product of rows of bfloat16 and a panel, float32 [rows, PANEL], to `out`.

    It takes as many rows as the registers were configured for, which begin `row_bytes` apart.
    `num_inputs` is a multiple of `INPUTS_A_STEP`.
    """

    def build(builder: Builder, *values: ir.Value) -> None:
        out, rows, row_bytes, panel, num_inputs = values
        panel_row = ir.Constant(I64, 4 * PANEL)
        for number in range(_NUM_SUMS):
            _emit(builder, "tilezero", _register(number))
        num_steps = builder.udiv(num_inputs, ir.Constant(I64, INPUTS_A_STEP))
        with cgutils.for_range(builder, num_steps) as loop:
            inputs = builder.add(rows, builder.mul(loop.index, ir.Constant(I64, _ROW_BYTES)))
            weights = builder.add(panel, builder.mul(loop.index, ir.Constant(I64, _STEP_BYTES)))
            _emit(builder, "tileloadd64", _register(_INPUTS), _at(builder, inputs), row_bytes)
            for number in range(_NUM_SUMS):
                own = _register(_WEIGHTS[number % len(_WEIGHTS)])
                place = _at(builder, weights, _ROW_BYTES * number)
                _emit(builder, "tileloadd64", own, place, panel_row)
                _emit(builder, "tdpbf16ps", _register(number), _register(_INPUTS), own)
        for number in range(_NUM_SUMS):
            place = _at(builder, out, _ROW_BYTES * number)
            _emit(builder, "tilestored64", _register(number), place, panel_row)

    return typed(build, types.void, *[types.int64] * 5)


class _Row(NamedTuple):
    """One row's sums of a panel, as vectors in registers."""

    builder: Builder
    row: ir.Value
    panel: ir.Value
    sums: Sequence[ir.Value]
    chains: Sequence[Sequence[ir.Value]]  # chains of a step: even inputs, odd ones

    def add_pair(self, pair: ir.Value) -> None:
        """Add the products of two inputs to the chains."""
        builder, high, half = self.builder, constant(INTS, -0x10000), constant(INTS, 16)
        place = builder.add(self.row, builder.mul(pair, ir.Constant(I64, 4)))
        inputs = spread(builder, builder.load(pointer(builder, place, I32), align=2), INTS)
        both = [builder.shl(inputs, half), builder.and_(inputs, high)]
        base = builder.add(self.panel, builder.mul(pair, ir.Constant(I64, _PAIR_BYTES)))
        for vector in range(_NUM_SUMS):
            place = plus(builder, base, _ROW_BYTES * vector)
            prefetch(builder, plus(builder, place, _AHEAD_BYTES))
            words = builder.load(pointer(builder, place, INTS), align=4)
            weights = [builder.shl(words, half), builder.and_(words, high)]
            for chain, some, weight in zip(self.chains, both, weights, strict=True):
                some, weight = (builder.bitcast(bits, FLOATS) for bits in (some, weight))
                summed = emit_fma(builder, some, weight, builder.load(chain[vector]))
                builder.store(summed, chain[vector])

    def end_step(self) -> None:
        """Add the chains to the sums."""
        builder = self.builder
        for each, even, odd in zip(self.sums, *self.chains, strict=True):
            both = builder.fadd(builder.load(even), builder.load(odd))
            builder.store(builder.fadd(builder.load(each), both), each)
            builder.store(constant(FLOATS, 0.0), even)
            builder.store(constant(FLOATS, 0.0), odd)


def _swap_control(builder: Builder, place: ir.Value, bits: ir.Value) -> ir.Value:
    """Set these bits in the thread's floating-point control; return its old value."""
    _emit(builder, "sse.stmxcsr", builder.bitcast(place, _ADDRESS))
    before = builder.load(place)
    builder.store(builder.or_(before, bits), place)
    _emit(builder, "sse.ldmxcsr", builder.bitcast(place, _ADDRESS))
    return before


@instruction
def multiply_row(context: Any, out: Any, row: Any, panel: Any, num_inputs: Any) -> Any:
    """Write what `multiply_matrix` writes for one row, bit for bit, without matrix registers."""

    def build(builder: Builder, *values: ir.Value) -> None:
        out, row, panel, num_inputs = values
        control = cgutils.alloca_once(builder, I32)
        before = _swap_control(builder, control, ir.Constant(I32, _TINY_IS_ZERO))
        vectors = [[cgutils.alloca_once(builder, FLOATS) for _ in range(_NUM_SUMS)] for _ in "+eo"]
        for each in (each for some in vectors for each in some):
            builder.store(constant(FLOATS, 0.0), each)
        sums, *chains = vectors
        state = _Row(builder, row, panel, sums, chains)
        num_steps = builder.udiv(num_inputs, ir.Constant(I64, INPUTS_A_STEP))
        with cgutils.for_range(builder, num_steps) as steps:
            first = builder.mul(steps.index, ir.Constant(I64, _PAIRS_A_STEP))
            with cgutils.for_range(builder, ir.Constant(I64, _PAIRS_A_STEP)) as pairs:
                state.add_pair(builder.add(first, pairs.index))
            state.end_step()
        builder.store(before, control)
        _emit(builder, "sse.ldmxcsr", builder.bitcast(control, _ADDRESS))
        for vector, each in enumerate(sums):
            place = plus(builder, out, _ROW_BYTES * vector)
            builder.store(builder.load(each), pointer(builder, place, FLOATS), align=4)

    return typed(build, types.void, *[types.int64] * 4)
